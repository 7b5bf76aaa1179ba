"""The network of machines that were recorded in tests/data/links, as the program reads it."""

from pathlib import Path

import yaml

from dflash_tui.machine import network
from dflash_tui.machine.network import Network
from tests import DATA


def read_recorded(name: str, folder: Path) -> Network:
    """Return the network of a recorded machine, whose files are laid out in `folder`."""
    recorded = yaml.safe_load((DATA / "links" / f"{name}.yaml").read_text())
    for path, text in recorded["files"].items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
    return network.read_network(folder, {key: tuple(value) for key, value in recorded["addresses"].items()})
