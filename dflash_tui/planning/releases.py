"""The table of vLLM releases that engines are installed from: what uv installs for each, and how large that is."""

from functools import cache
from typing import Any

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.yaml_loader import load_yaml
from dflash_tui.planning.recipes.recipe import EngineSpec

_FILE = paths.PACKAGE_ROOT / "releases.yaml"


@cache
def load_releases() -> dict[str, EngineSpec]:
    """Return the engines of the releases by version, oldest first."""
    table = load_yaml(_FILE, dict[str, dict[str, dict[str, Any]]])["releases"]
    return {vllm: msgspec.convert(fields | {"vllm": vllm}, EngineSpec) for vllm, fields in table.items()}
