"""Apply and revert under faults: killed anywhere, a full disk, files that may not be written, two at once."""

import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dflash_tui.common.errors import PatchError
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import import_check, ledger, patcher, status, transaction
from dflash_tui.engines.patching.status import PatchState
from tests.patching.pair import Act, acts, copy_of, sources, start, tree
from tests.support.kill_between_syscalls import killed_at

# Every 29th entry to or return from the kernel, with `-m long` every 10th; 1 tries all of them, which takes minutes.
strides = pytest.mark.parametrize("stride", [29, pytest.param(10, marks=pytest.mark.long)])


@pytest.fixture
def arming(monkeypatch) -> Callable[[Act, Engine], Callable[[Callable[[], None]], object]]:
    """Return what makes work of an act that says when its first write is near: before that nothing can be half done."""
    real = transaction.commit_changes

    def armed(act: Act, engine: Engine) -> Callable[[Callable[[], None]], object]:
        def work(begin: Callable[[], None]) -> object:
            def begun(*words: Any) -> None:
                begin()
                real(*words)

            monkeypatch.setattr(transaction, "commit_changes", begun)
            return act(engine)

        return work

    return armed


@strides
@pytest.mark.parametrize("act", ["apply", "revert"])
def test_killed_between_any_two_system_calls(  # noqa: PLR0917 - pytest hands them over
    pair, both, act, stride, arming, tmp_path
):
    """Each file is old or new at any moment; the next run makes them all old or all new, and says which."""
    before, after = start(pair, both, act)
    said: dict[str, int] = {}
    for point in count(1, stride):
        victim = copy_of(pair, tmp_path / "victim")
        if not killed_at(arming(acts(both)[act], victim), point):
            break
        for path, data in sources(tree(victim)).items():
            assert data in {before.get(path), after.get(path)} or "dflash-" in path, (point, path)
        with ledger.lock_ledger(victim):
            word = transaction.recover_change(victim).rpartition(" ")[2]
        said[word] = said.get(word, 0) + 1
        found = tree(victim)
        assert found in (before, after), (point, word)
        assert word != "finished" or found == after, point
        assert word != "undone" or found == before, point
        assert status.find_patch_status(both, victim).state is (
            PatchState.APPLIED if "dflash-patches.json" in found else PatchState.NEEDED
        )
        acts(both)[act](victim)
        assert tree(victim) == after, point
    print(f"{act}: killed at {point // stride} points; the next run said {said}")
    assert point > 500
    assert min(said["undone"], said["finished"], said[""]) > 0


@strides
@pytest.mark.parametrize("act", ["apply", "revert"])
def test_a_recovery_that_is_killed_is_taken_up_again(  # noqa: PLR0917 - pytest hands them over
    pair, both, act, stride, arming, tmp_path
):
    """Killed in the middle, then killed again while that is put right."""
    before, after = start(pair, both, act)
    half = copy_of(pair, tmp_path / "half")
    points = count(1, stride)
    while not transaction.find_unfinished_change(half) or sources(tree(half)) in (sources(before), sources(after)):
        half = copy_of(pair, tmp_path / "half")
        assert killed_at(arming(acts(both)[act], half), next(points))

    def recover(victim: Engine) -> None:
        with ledger.lock_ledger(victim):
            transaction.recover_change(victim)

    for point in count(1, stride):
        victim = copy_of(half, tmp_path / "victim")

        def work(begin: Callable[[], None], victim: Engine = victim) -> None:
            begin()
            recover(victim)

        died = killed_at(work, point)
        recover(victim)
        assert tree(victim) == before, point
        if not died:
            break
    assert point > 100


class Faults:
    """Makes file operations below a folder fail before they happen, through Python's audit events."""

    def __init__(self) -> None:
        self.folder, self.count = "", 0
        self.fails: Callable[[int, bool], bool] = lambda _number, _writes: False
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if not self.folder or event not in {"open", "os.rename", "os.remove", "os.mkdir", "os.chmod", "os.rmdir"}:
            return
        if not str(arguments[0]).startswith(self.folder):
            return
        flags = arguments[2] if event == "open" else 0
        writes = event == "os.mkdir" or (isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR)))
        self.count += 1
        if self.fails(self.count, writes):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))


@pytest.fixture(scope="module")
def hook() -> Faults:
    return Faults()  # an audit hook stays for good


@pytest.fixture
def faults(hook) -> Iterator[Faults]:
    yield hook
    hook.folder = ""


@pytest.mark.parametrize("act", ["apply", "revert"])
@pytest.mark.parametrize("lasting", [False, True], ids=["once", "full from then on"])
def test_a_full_disk_at_any_step_leaves_the_old_state(  # noqa: PLR0917 - pytest hands them over
    pair, both, act, lasting, faults, tmp_path
):
    """An operation fails once, or everything that needs space does from then on: an error in words, nothing changed."""
    before, after = start(pair, both, act)
    failed = number = 0
    done = False
    while not done:
        number += 1
        victim = copy_of(pair, tmp_path / "victim")
        faults.count = 0
        if lasting:
            faults.fails = lambda so_far, writes, n=number: writes and so_far >= n
        else:
            faults.fails = lambda so_far, _writes, n=number: so_far == n
        faults.folder = victim.folder
        try:
            acts(both)[act](victim)
            done = number > 200 or faults.count < number
        except PatchError:
            failed += 1
        finally:
            faults.folder = ""
        if sources(tree(victim)) != sources(before):
            with ledger.lock_ledger(victim):
                transaction.recover_change(victim)
            assert tree(victim) == after, number
        with ledger.lock_ledger(victim):
            transaction.recover_change(victim)
        assert tree(victim) in (before, after), number
    print(f"{act}, {'lasting' if lasting else 'once'}: {failed} of {number} faults ended it")
    assert failed > 8


def test_what_could_not_be_undone_is_said(pair, both, monkeypatch):
    """The second file cannot take its place, nor the first go back: the error tells that half is there."""
    before, move = tree(pair), Path.replace

    def failing(path: Path, there: Path) -> Path:
        if path.name in {".two.py.dflash-new", ".one.py.dflash-old"}:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return move(path, there)

    with monkeypatch.context() as failed:
        failed.setattr(Path, "replace", failing)
        with pytest.raises(PatchError, match="cannot be changed") as caught:
            patcher.apply_patches([both], pair)
    left = transaction.find_unfinished_change(pair)
    assert left
    assert os.strerror(errno.ENOSPC) in caught.value.evidence
    assert left.message in caught.value.evidence
    with ledger.lock_ledger(pair):
        assert "undone" in transaction.recover_change(pair)
    assert tree(pair) == before


def test_a_file_that_changes_between_plan_and_write_is_kept(pair, both, monkeypatch):
    """Somebody edits it while its new text is being tried: their text stays, and nothing else is changed."""
    theirs = pair.site_packages / "vllm" / "b" / "two.py"
    monkeypatch.setattr(import_check, "check_imports", lambda _engine, _texts: theirs.write_text("y = 1  # theirs\n"))
    before = tree(pair)
    with pytest.raises(PatchError, match=r"b/two\.py in the meantime"):
        patcher.apply_patches([both], pair)
    assert tree(pair) == before | {str(theirs.relative_to(pair.folder)): b"y = 1  # theirs\n"}


def test_two_at_once_take_turns(pair, both):
    """Panels that apply and revert side by side never see or leave half of it, and none fails."""
    plain = tree(pair)
    patcher.apply_patches([both], pair)
    patched = tree(pair)
    failures: list[Exception] = []
    seen: list[bool] = []

    def work(act: Act) -> None:
        try:
            for _ in range(15):
                act(pair)
                with ledger.lock_ledger(pair):
                    seen.append(tree(pair) in (plain, patched))
        except Exception as error:  # noqa: BLE001 - whatever it is, no thread may fail
            failures.append(error)

    threads = [threading.Thread(target=work, args=(act,)) for act in (*acts(both).values(), *acts(both).values())]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert seen == [True] * 60
    assert tree(pair) in (plain, patched)


def test_whoever_waits_too_long_says_so(pair):
    """A panel that hangs while it holds the lock is not waited for without end."""
    waiting = ledger.lock_ledger(pair, timeout=0.2)
    with ledger.lock_ledger(pair), pytest.raises(PatchError, match="another dflash-tui is changing"):
        waiting.__enter__()
