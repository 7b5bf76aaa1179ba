"""One file that cannot be used never hides the others: each list names it with its reason and goes on."""

import functools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dflash_tui.benchmark import suites
from dflash_tui.cli import main
from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.engines import inventory
from dflash_tui.experiments import store
from dflash_tui.runs import registry
from tests.support.experiment_factories import a_design
from tests.support.preflight_situations import engine_in
from tests.tui.conftest import a_run

HARMS: dict[str, Callable[[Path], object]] = {
    "folder": Path.mkdir,
    "half": functools.partial(Path.write_bytes, data=b'{"title": '),
}
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("harm", HARMS)
def test_a_broken_suite_hides_no_other(harm):
    """Nor does a file of questions."""
    folder = paths.user_suites_folder()
    folder.mkdir(parents=True)
    for name in ("mine.yaml", "mine.jsonl"):
        HARMS[harm](folder / name)
        with pytest.raises(UsageError):
            suites.load_suite(str(folder / name))
    assert suites.load_suite("field").prompts
    with pytest.raises(UsageError) as unknown:
        suites.load_suite("zzz")
    assert "field" in unknown.value.hint


@pytest.mark.parametrize("harm", HARMS)
def test_a_broken_run_hides_no_other(harm, capsys):
    """`ps` and `history` name it; asked for by its name, the reason is the answer."""
    good = a_run()
    good.folder.mkdir(parents=True)
    (good.folder / registry.RUN_FILE).write_bytes(msgspec.json.encode(good))
    bad = good.folder.with_name("20261122-010203-bad")
    bad.mkdir()
    HARMS[harm](bad / registry.RUN_FILE)
    assert registry.list_runs() == [good]
    assert list(registry.list_broken_runs()) == [bad.name]
    for words in (["ps", "--all"], ["runs", "history"]):
        assert main.main(words) == 0
        output = capsys.readouterr()
        assert f"! ignoring {bad}: its run.json" in output.err
        assert words[0] != "ps" or good.id in output.out
    with pytest.raises(UsageError, match="ignoring"):
        registry.find_run(bad.name)


@pytest.mark.parametrize("harm", HARMS)
def test_a_broken_experiment_hides_no_other(harm, capsys):
    """`ab list` names it; asked for by its name, the reason is the answer."""
    store.create_experiment(good := a_design())
    bad = store.experiment_folder("20261122-010203-bad")
    bad.mkdir()
    HARMS[harm](bad / "experiment.json")
    assert store.list_experiments() == [good]
    assert main.main(["ab", "list"]) == 0
    output = capsys.readouterr()
    assert good.id in output.out
    assert f"! ignoring {bad}: its experiment.json" in output.err
    with pytest.raises(UsageError, match="ignoring"):
        store.find_experiment(bad.name)


@pytest.mark.parametrize("harm", HARMS)
def test_a_broken_engine_hides_no_other(harm, capsys):
    """Neither a marker nor a record of an adopted one, nor what is cached of a good one; the list names each."""
    good = engine_in(paths.engines_folder() / "good")
    for name in ("bad/dflash-engine.json", "adopted/bad.json"):
        (paths.engines_folder() / name).parent.mkdir(exist_ok=True)
        HARMS[harm](paths.engines_folder() / name)
    HARMS[harm](inventory._options_file(good))
    assert inventory.list_engines() == [good]
    assert inventory.read_cached_serve_options(good) is None
    bad, record = paths.engines_folder() / "bad", paths.engines_folder() / "adopted" / "bad.json"
    assert [unused.folder for unused in inventory.list_unused_engines()] == [bad, record]
    assert main.main(["engine", "list"]) == 0
    output = capsys.readouterr()
    assert good.folder in output.out
    assert all(f"{unused.what}; {unused.hint}" in output.err for unused in inventory.list_unused_engines())
    assert main.main(["engine", "inspect", "bad"]) == 2
    assert main.main(["engine", "remove", "bad"]) == 0
    assert [unused.folder for unused in inventory.list_unused_engines()] == [record]


def test_moved_or_pythonless_engine_is_named(capsys):
    """As after a new release of the system's Python; an adopted one, too."""
    (paths.engines_folder() / "old").mkdir(parents=True)
    moved, ours, theirs = (paths.engines_folder() / name for name in ("moved", "ours", "../theirs"))
    engine_in(paths.engines_folder() / "new").python.resolve()
    (paths.engines_folder() / "new").rename(moved)
    engines = [engine_in(ours), engine_in(theirs.resolve(), adopted=True)]
    record = inventory._record(theirs.resolve())
    record.parent.mkdir()
    record.write_bytes(msgspec.json.encode(engines[1]))
    assert inventory.list_engines() == engines
    for engine in engines:
        engine.python.unlink()
        engine.python.symlink_to("python")
    assert inventory.list_engines() == []
    assert [unused.folder for unused in inventory.list_unused_engines()] == [moved, ours, theirs.resolve()]
    assert main.main(["engine", "list"]) == 0
    assert capsys.readouterr().err.count("is not used: it") == 3


@pytest.mark.parametrize("words", [("engine", "adopt"), ("engine", "inspect"), ("replay",), ("report",)], ids=" ".join)
def test_unknown_users_home_gives_no_traceback(words, capsys):
    """A shell leaves `~NAME` as it is where it knows no such user."""
    assert main.main([*words, "~no-such-user/x"]) == 2
    assert "~no-such-user" in capsys.readouterr().err
