"""The folders that we read and write: the user's XDG folders, and the data of the package."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

from dflash_tui.common.errors import UsageError

_APP = "dflash-tui"
# The folder of this package and its shipped data, in a checkout or in site-packages.
PACKAGE_ROOT = Path(__file__).parents[1]


def expand_home(text: str) -> Path:
    """Return the path that a user wrote, with `~` expanded; `~NAME` of an unknown user stays as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises there


def resolve_links(path: Path) -> Path:
    """Return the absolute path with links resolved; circular links stay as they are."""
    return Path(os.path.realpath(path))  # Path.resolve raises there before Python 3.13


def hub_home_folder() -> Path:
    """Return the home folder of huggingface_hub (HF_HOME, XDG_CACHE_HOME)."""
    return expand_variables(
        os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    )


def expand_variables(text: str) -> Path:
    """Return the absolute path that huggingface_hub reads from the value of a variable."""
    return Path(os.path.expanduser(os.path.expandvars(text))).absolute()  # noqa: PTH111


def find_existing(folder: Path) -> Path:
    """Return `folder`, or the nearest folder above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _own(place: Callable[[str], Path]) -> Path:
    """Return one of our folders; raise UsageError if it is not absolute, as without a home, or not valid UTF-8."""
    try:
        folder = place(_APP)
        str(folder).encode()
    except RuntimeError:
        raise UsageError("this user has no home folder", hint="export HOME=/path/to/a/writable/folder") from None
    except UnicodeEncodeError:
        what, hint = "the name of a folder is not valid UTF-8", "export LC_ALL=C.UTF-8, or set another folder by XDG_…"
        raise UsageError(what, evidence=repr(str(folder)), hint=hint) from None
    if not folder.is_absolute():
        raise UsageError(f"{folder} is not an absolute path", hint="export HOME=/path/to/a/writable/folder")
    return folder


def bundled_folder(kind: str) -> Path:
    """Return the folder of shipped `recipes` or `patches`, in a checkout or in an installed package.

    Its README.md distinguishes it from a stray folder of the same name in site-packages.

    Raises:
        FileNotFoundError: the installation is incomplete.
    """
    for folder in (PACKAGE_ROOT / kind, PACKAGE_ROOT.parent / kind):
        if (folder / "README.md").is_file():
            return folder
    raise FileNotFoundError(f"{kind} are missing from the installation in {PACKAGE_ROOT}")


def sample_folder() -> Path:
    """Return the folder of the shipped recorded run."""
    return PACKAGE_ROOT / "sample"


def suites_folder() -> Path:
    """Return the folder of the shipped prompt suites."""
    return PACKAGE_ROOT / "suites"


def state_folder() -> Path:
    """Return the folder of recorded state: runs, experiments and reservations (XDG state)."""
    return _own(platformdirs.user_state_path)


def runs_folder() -> Path:
    """Return the folder with one folder per run (XDG state)."""
    return state_folder() / "runs"


def reservations_folder() -> Path:
    """Return the folder with one file per launch that is being prepared (XDG state)."""
    return state_folder() / "reservations"


def experiments_folder() -> Path:
    """Return the folder with one folder per A/B (XDG state)."""
    return state_folder() / "experiments"


def verifications_folder() -> Path:
    """Return the folder with one file per recipe verified on this machine (XDG state)."""
    return state_folder() / "verifications"


def trusted_recipes_file() -> Path:
    """Return the file with the hashes of the recipes and patches that the user trusts (XDG state)."""
    return state_folder() / "trusted-recipes"


def data_folder() -> Path:
    """Return the folder of what is installed or built: engines and models (XDG data)."""
    return _own(platformdirs.user_data_path)


def engines_folder() -> Path:
    """Return the folder with one vLLM environment per engine (XDG data)."""
    return data_folder() / "engines"


def models_folder() -> Path:
    """Return the folder of models that recipes build themselves (XDG data)."""
    return data_folder() / "models"


def derived_recipes_folder() -> Path:
    """Return the folder of recipes derived for pairs without one (XDG data)."""
    return data_folder() / "derived-recipes"


def cache_folder() -> Path:
    """Return the folder for files that servers can recreate (XDG cache)."""
    return _own(platformdirs.user_cache_path)


def arm_caches_folder() -> Path:
    """Return the folder of compile caches for experiments of other hosts, one folder each (XDG cache)."""
    return cache_folder() / "arms"


def config_folder() -> Path:
    """Return the folder of the user's own recipes, patches and suites (XDG config)."""
    return _own(platformdirs.user_config_path)


def user_recipes_folder() -> Path:
    """Return the folder of the user's own recipes, which override shipped ones (XDG config)."""
    return config_folder() / "recipes"


def user_patches_folder() -> Path:
    """Return the folder of the user's own patches, which override shipped ones (XDG config)."""
    return config_folder() / "patches"


def list_patch_files() -> dict[str, Path]:
    """Return the files of all patches by name; the user's own override shipped ones."""
    files: dict[str, Path] = {}
    for folder in (bundled_folder("patches"), user_patches_folder()):
        files |= {path.stem: path for path in folder.glob("[!_.]*.yaml")}
    return files


def user_suites_folder() -> Path:
    """Return the folder of the user's own prompt suites, which override shipped ones (XDG config)."""
    return config_folder() / "suites"
