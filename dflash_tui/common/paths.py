"""The folders that we read and write: XDG folders of the user, and data of the package."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import platformdirs

from dflash_tui.common.errors import UsageError

_APP = "dflash-tui"
# The folder of this package, in a checkout or in site-packages; what is shipped lies in it.
PACKAGE_ROOT = Path(__file__).parents[1]


def expand_home(text: str) -> Path:
    """Return the path that a user wrote, `~` for a home folder; `~NAME` of a user that there is not stays as it is."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 - Path.expanduser raises there


def resolve_links(path: Path) -> Path:
    """Return the absolute path that links lead to; links that lead in a circle stay in it."""
    return Path(os.path.realpath(path))  # Path.resolve raises there before Python 3.13


def hub_home_folder() -> Path:
    """Return the folder of huggingface_hub (HF_HOME, XDG_CACHE_HOME)."""
    return expand_variables(
        os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface"
    )


def expand_variables(text: str) -> Path:
    """Return the absolute path that huggingface_hub reads in a variable."""
    return Path(os.path.expanduser(os.path.expandvars(text))).absolute()  # noqa: PTH111


def find_existing(folder: Path) -> Path:
    """Return `folder`, or the nearest one above it that exists."""
    return next(place for place in (folder, *folder.parents) if place.exists())


def _own(place: Callable[[str], Path]) -> Path:
    """Return a folder of ours; raise UsageError where it is not absolute, as without a home, or not valid UTF-8."""
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

    The README.md in it tells it from a stray folder of the same name in site-packages.

    Raises:
        FileNotFoundError: the installation is incomplete.
    """
    for folder in (PACKAGE_ROOT / kind, PACKAGE_ROOT.parent / kind):
        if (folder / "README.md").is_file():
            return folder
    raise FileNotFoundError(f"{kind} are missing from the installation in {PACKAGE_ROOT}")


def sample_folder() -> Path:
    """Return the folder of the recorded run that is shipped."""
    return PACKAGE_ROOT / "sample"


def suites_folder() -> Path:
    """Return the folder of the shipped prompt suites."""
    return PACKAGE_ROOT / "suites"


def state_folder() -> Path:
    """Return the folder of what is recorded: runs, experiments and reservations are in it (XDG state)."""
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
    """Return the folder with one file per recipe that was verified here (XDG state)."""
    return state_folder() / "verifications"


def trusted_recipes_file() -> Path:
    """Return the file with the hashes of the recipes and patches that the user trusts (XDG state)."""
    return state_folder() / "trusted-recipes"


def data_folder() -> Path:
    """Return the folder of what is installed and built: engines and models are in it (XDG data)."""
    return _own(platformdirs.user_data_path)


def engines_folder() -> Path:
    """Return the folder with one vLLM environment per engine (XDG data)."""
    return data_folder() / "engines"


def models_folder() -> Path:
    """Return the folder of the models that recipes build themselves (XDG data)."""
    return data_folder() / "models"


def derived_recipes_folder() -> Path:
    """Return the folder of the recipes that were derived for pairs without one (XDG data)."""
    return data_folder() / "derived-recipes"


def cache_folder() -> Path:
    """Return the folder for files that servers can recreate (XDG cache)."""
    return _own(platformdirs.user_cache_path)


def arm_caches_folder() -> Path:
    """Return the folder of what experiments of other hosts compile here, one folder each (XDG cache)."""
    return cache_folder() / "arms"


def config_folder() -> Path:
    """Return the folder of what the user writes: recipes, patches and suites are in it (XDG config)."""
    return _own(platformdirs.user_config_path)


def user_recipes_folder() -> Path:
    """Return the folder of the user's own recipes (XDG config); they win over the shipped ones."""
    return config_folder() / "recipes"


def user_patches_folder() -> Path:
    """Return the folder of the user's own patches (XDG config); they win over the shipped ones."""
    return config_folder() / "patches"


def list_patch_files() -> dict[str, Path]:
    """Return the files of all patches by name; the user's own win over the shipped ones."""
    files: dict[str, Path] = {}
    for folder in (bundled_folder("patches"), user_patches_folder()):
        files |= {path.stem: path for path in folder.glob("[!_.]*.yaml")}
    return files


def find_patch_file(name: str) -> Path | None:
    """Return the file of the patch called `name`, as `list_patch_files` has it, without a look at the others."""
    if name[:1] in {"", "_", "."} or "/" in name:
        return None
    files = (folder / f"{name}.yaml" for folder in (user_patches_folder(), bundled_folder("patches")))
    return next((file for file in files if file.exists()), None)


def user_suites_folder() -> Path:
    """Return the folder of the user's own prompt suites (XDG config); they win over the shipped ones."""
    return config_folder() / "suites"
