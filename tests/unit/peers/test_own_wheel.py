"""A wheel of the running program, held against the one that the build backend makes."""

import io
import subprocess
import sys
import zipfile
from email.parser import Parser

import pytest

from dflash_tui import __version__
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError
from dflash_tui.peers import far_program
from tests import ROOT

INFO = f"dflash_tui-{__version__}.dist-info"


def read(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as wheel:
        assert wheel.testzip() is None
        return {name: wheel.read(name) for name in wheel.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, bytes]:
    """The files of the wheel that hatchling makes of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return read(wheel.read_bytes())


def test_own_wheel_has_files_of_built_wheel(built):
    """Modules, data, recipes, patches and entry point, byte for byte."""
    wheel = far_program.build_own_wheel()
    ours = read(wheel.data)
    assert ours.keys() == {name for name in built if "/licenses/" not in name}
    differing = {f"{INFO}/{name}" for name in ("RECORD", "WHEEL", "METADATA")}
    assert {name for name, data in ours.items() if built[name] != data} <= differing
    said = [Parser().parsestr(files[f"{INFO}/METADATA"].decode(), headersonly=True) for files in (ours, built)]
    assert {tuple(sorted(each.items())) for each in said} == {tuple(sorted(said[1].items()))}
    assert wheel.name == f"dflash_tui-{__version__}-py3-none-any.whl"


def test_hidden_and_compiled_files_stay_here(tmp_path, monkeypatch):
    package = tmp_path / "dflash_tui"
    for kind in ("recipes", "patches", "__pycache__"):
        (package / kind).mkdir(parents=True)
        (package / kind / "README.md").touch()
    (package / "__init__.py").touch()
    (package / ".env").write_text("HF_TOKEN=planted")
    monkeypatch.setattr(paths, "PACKAGE_ROOT", package)
    names = {name for name in read(far_program.build_own_wheel().data) if INFO not in name}
    assert names == {f"dflash_tui/{name}" for name in ("__init__.py", "recipes/README.md", "patches/README.md")}


def test_program_that_was_never_installed(monkeypatch):
    monkeypatch.setattr(far_program, "_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(DflashError) as error:
        far_program.build_own_wheel()
    assert error.value.hint
