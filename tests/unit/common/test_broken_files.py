"""One file that cannot be used never hides the others: each list names it with its reason and goes on."""

import functools
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dflash_tui.benchmark import suites
from dflash_tui.cli import main
from dflash_tui.common import paths
from dflash_tui.common.broken_files import load_each
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.engines import inventory
from dflash_tui.engines.hub import cache
from dflash_tui.engines.patching import ledger
from dflash_tui.experiments import store
from dflash_tui.planning import recipe_loader
from dflash_tui.planning.recipe import Recipe
from dflash_tui.runs import registry
from dflash_tui.tui.screens.launch import load_recipes
from tests.support.experiment_factories import a_design, boots, told, written
from tests.support.odd_files import ODD_FILES
from tests.support.preflight_situations import engine_in
from tests.tui.conftest import a_run

TEXTS = {
    "nothing": b"",
    "half": b'{"title": ',
    "bytes": b"\xff\xfe\x00",
    "tag": b"title: !!bool foo\n",
    "surrogate": b'{"title": "\\ud800"}',
    "bytes in a text": b'{"id": "\xff", "folder": "\xff"}',
    "deep": b"[" * 100_000,
    "deep in a key": b'{"x": ' + b"[" * 100_000,
    "number": b'{"x": 1e999}',
    "large": b"#" * (2 << 20),
}
HARMS: dict[str, Callable[[Path], object]] = {
    **{kind: make for kind, make in ODD_FILES.items() if kind != "link to a file"},
    **{kind: functools.partial(Path.write_bytes, data=text) for kind, text in TEXTS.items()},
}
pytestmark = pytest.mark.timeout(60)


def test_names_and_reasons_can_be_written_anywhere(tmp_path):
    """A name of a file may hold bytes that are no text, and a reason quotes it."""

    def load(path: Path) -> str:
        if path.name == "good":
            return "value"
        raise RecipeError(f"{path.name} is wrong")

    usable, broken = load_each({name: tmp_path / name for name in ("good", "\udcff")}, load)
    assert usable == {"good": "value"}
    assert list(broken) == ["\\udcff"]
    assert "".join([*broken, *broken.values()]).encode()


@pytest.mark.parametrize("harm", HARMS)
def test_a_broken_recipe_hides_no_other(harm, capsys):
    """`recipes`, `recipes check` and the list of the panel."""
    folder = paths.user_recipes_folder()
    folder.mkdir(parents=True)
    HARMS[harm](folder / "mine.yaml")
    shipped = set(recipe_loader.list_recipe_files()) - {"mine"}
    known, broken = recipe_loader.load_all_recipes()
    assert (set(known), set(broken)) == (shipped, {"mine"})
    entries = load_recipes()
    assert {name for name, entry in entries.items() if isinstance(entry, Recipe)} == shipped
    assert isinstance(entries["mine"], RecipeError)
    assert main.main(["recipes"]) == 0
    listed = capsys.readouterr()
    assert all(name in listed.out for name in shipped)
    assert listed.err.startswith("! mine: ")
    assert main.main(["recipes", "check"]) == 2
    assert sum(line.startswith("✗ ") for line in capsys.readouterr().out.splitlines()) == 1


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
    for words in (["ps", "--all"], ["history"]):
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
def test_a_broken_engine_hides_no_other(harm):
    """Neither a marker nor a record of an adopted one, nor what is cached of a good one."""
    good = engine_in(paths.engines_folder() / "good")
    for name in ("bad/dflash-engine.json", "adopted/bad.json", "good/dflash-patches.json"):
        (paths.engines_folder() / name).parent.mkdir(exist_ok=True)
        HARMS[harm](paths.engines_folder() / name)
    HARMS[harm](inventory._options_file(good))
    assert inventory.list_engines() == [good]
    assert inventory.read_cached_serve_options(good) is None
    assert ledger.read_ledger_or_none(good) is None


@pytest.mark.parametrize("harm", HARMS)
def test_a_broken_cache_of_models_is_an_empty_one(harm, monkeypatch, tmp_path):
    """What the cache says of a model is nothing, and nobody waits for it."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    folder = cache.repository_folder("someone/model") / "refs"
    folder.mkdir(parents=True)
    HARMS[harm](folder / "main")
    HARMS[harm](folder / "model.safetensors.index.json")
    (folder / "config.json").touch()
    assert cache.read_cached_commit("someone/model", "main") is None
    assert not cache.is_whole_snapshot(folder)


@pytest.mark.parametrize("name", ["driver.json", "events.jsonl", "report.json", "driver.log"])
def test_a_fifo_in_the_folder_of_an_experiment_keeps_nobody(name, capsys):
    """Its list and its report are those of one without the file."""
    folder = store.create_experiment(a_design())
    os.mkfifo(folder / name)
    assert main.main(["ab", "list"]) == 0
    assert a_design().id in capsys.readouterr().out
    assert main.main(["ab", "attach", a_design().id]) == 1
    assert store.read_report(folder) is None


def test_events_of_boots_that_no_design_has_are_left_out():
    """Numbers of boots and arms that are not there, as in a file that somebody made."""
    design = a_design()
    folder = written(design, told(design, boots(design, (10.0, 12.0)))[:-1])
    known = store.read_progress(folder)
    lines = (folder / store.EVENTS).read_bytes().splitlines()
    for number, arm in ((10**6, 0), (-1, 0), (0, 10**6), (0, -1)):
        for line in lines:
            event = msgspec.json.decode(line)
            for fields in (event, event.get("boot", {})):
                fields |= {key: value for key, value in (("number", number), ("arm", arm)) if key in fields}
            with (folder / store.EVENTS).open("ab") as file:
                file.write(msgspec.json.encode(event) + b"\n")
    assert store.read_progress(folder).boots == known.boots
    assert store.read_progress(folder).current == known.current
