"""A wheel of the running program, held against the one that the build backend makes."""

import base64
import csv
import hashlib
import io
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

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


def test_it_has_the_files_of_the_one_that_is_built(built):
    """Modules, data, recipes, patches, license and entry point, byte for byte; two of them are the same."""
    wheel = far_program.build_own_wheel()
    ours = read(wheel.data)
    differing = {f"{INFO}/{name}" for name in ("RECORD", "WHEEL", "METADATA")}
    assert ours.keys() == built.keys()
    assert {name for name, data in ours.items() if built[name] != data} <= differing
    said = [Parser().parsestr(files[f"{INFO}/METADATA"].decode(), headersonly=True) for files in (ours, built)]
    assert {tuple(sorted(each.items())) for each in said} == {tuple(sorted(said[1].items()))}
    assert wheel.name == f"dflash_tui-{__version__}-py3-none-any.whl"
    assert far_program.build_own_wheel() == wheel


def test_its_record_names_each_file_with_its_hash():
    files = read(far_program.build_own_wheel().data)
    rows = {name: (digest, size) for name, digest, size in csv.reader(files[f"{INFO}/RECORD"].decode().splitlines())}
    assert rows.keys() == files.keys()
    for name, data in files.items():
        if name != f"{INFO}/RECORD":
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            assert rows[name] == (f"sha256={digest}", str(len(data)))


def test_what_is_installed_from_it_makes_the_same_again(tmp_path):
    """Also from a wheel's installation, where recipes and patches lie in the package, and what is compiled beside."""
    wheel = far_program.build_own_wheel()
    with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
        archive.extractall(tmp_path)
    code = (
        "import hashlib, sys; sys.path.insert(0, sys.argv[1])\n"
        "from dflash_tui.peers import far_program; wheel = far_program.build_own_wheel()\n"
        "print(far_program.__file__, hashlib.sha256(wheel.data).hexdigest())"
    )
    command = [sys.executable, "-I", "-c", code, str(tmp_path)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert told == [str(tmp_path / "dflash_tui" / "peers" / "far_program.py"), hashlib.sha256(wheel.data).hexdigest()]
    assert [*tmp_path.rglob("*.pyc")]


def test_what_is_none_of_ours_stays_here(tmp_path, monkeypatch):
    """Hidden files, and links, which may lead anywhere."""
    package = tmp_path / "dflash_tui"
    for kind in ("recipes", "patches"):
        (package / kind).mkdir(parents=True)
        (package / kind / "README.md").touch()
    (package / "__init__.py").touch()
    (package / ".env").write_text("HF_TOKEN=planted")
    (package / "key").symlink_to(Path(__file__))
    (package / "folder").symlink_to(ROOT / "tests")
    monkeypatch.setattr(paths, "PACKAGE_ROOT", package)
    names = {name for name in read(far_program.build_own_wheel().data) if INFO not in name}
    assert names == {f"dflash_tui/{name}" for name in ("__init__.py", "recipes/README.md", "patches/README.md")}


def test_a_program_that_was_never_installed_says_so(monkeypatch):
    monkeypatch.setattr(far_program, "_DISTRIBUTION", "no-such-distribution")
    with pytest.raises(DflashError) as error:
        far_program.build_own_wheel()
    assert error.value.hint
