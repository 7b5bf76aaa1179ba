"""The one place that knows where things live."""

from __future__ import annotations

from pathlib import Path

import platformdirs

_APP = "dflash-tui"


def bundled(kind: str) -> Path:
    """Return the folder of shipped `recipes` or `patches`, in a checkout or in an installed package.

    The README.md in it tells it from a stray folder of the same name in site-packages.

    Raises:
        FileNotFoundError: the installation is incomplete.
    """
    package = Path(__file__).parents[1]
    for folder in (package / kind, package.parent / kind):
        if (folder / "README.md").is_file():
            return folder
    raise FileNotFoundError(f"{kind} are missing from the installation in {package}")


def in_engine(script: str) -> Path:
    """Return a script that an engine's Python runs."""
    return Path(__file__).parents[1] / "in_engine" / script


def sample() -> Path:
    """Return the folder of the recorded run that is shipped."""
    return Path(__file__).parents[1] / "sample"


def suites() -> Path:
    """Return the folder of the shipped prompt suites."""
    return Path(__file__).parents[1] / "suites"


def runs() -> Path:
    """Return the folder with one folder per run (XDG state)."""
    return platformdirs.user_state_path(_APP) / "runs"


def experiments() -> Path:
    """Return the folder with one folder per A/B (XDG state)."""
    return platformdirs.user_state_path(_APP) / "experiments"


def engines() -> Path:
    """Return the folder with one vLLM environment per engine (XDG data)."""
    return platformdirs.user_data_path(_APP) / "engines"


def models() -> Path:
    """Return the folder of the models that recipes build themselves (XDG data)."""
    return platformdirs.user_data_path(_APP) / "models"


def cache() -> Path:
    """Return the folder for what servers may throw away (XDG cache)."""
    return platformdirs.user_cache_path(_APP)


def user_recipes() -> Path:
    """Return the folder of the user's own recipes (XDG config); they win over the shipped ones."""
    return platformdirs.user_config_path(_APP) / "recipes"


def user_patches() -> Path:
    """Return the folder of the user's own patches (XDG config); they win over the shipped ones."""
    return platformdirs.user_config_path(_APP) / "patches"


def user_suites() -> Path:
    """Return the folder of the user's own prompt suites (XDG config); they win over the shipped ones."""
    return platformdirs.user_config_path(_APP) / "suites"
