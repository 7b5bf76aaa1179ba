"""Which run a name means, where names begin alike: two launches within a second differ only in what follows."""

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui.common.errors import UsageError
from dflash_tui.runs import registry, server_process
from dflash_tui.runs.run import EXPERIMENT_MARK
from tests.tui.conftest import a_run

FIRST, SECOND, OTHER = "20261121-012400-toy", "20261121-012400-toy-2", "20261121-012500-toy-gpu"


@pytest.fixture(autouse=True)
def runs(folders):
    """Three runs; the second has a recipe that is called as the first begins, which says nothing."""
    for number, (name, recipe) in enumerate(((FIRST, "toy"), (SECOND, "toy"), (OTHER, "20261121-0124"))):
        made = a_run(recipe=recipe)
        run = replace(made, id=name, started_at=made.started_at + number)
        run.folder.mkdir(mode=0o700, parents=True)
        (run.folder / "run.json").write_bytes(msgspec.json.encode(run))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        (SECOND, SECOND),
        ("toy", SECOND),
        ("20261121-0124", OTHER),
        ("20261121-012400-toy-", SECOND),
        (None, OTHER),
    ],
)
def test_run_name_precedes_recipe_and_name_prefix(name, meant):
    assert registry.find_run(name).id == meant


@pytest.mark.parametrize(
    ("alive", "meant"),
    [
        pytest.param({FIRST, SECOND, OTHER}, FIRST, id="the newest that lasts"),
        pytest.param({SECOND, OTHER}, OTHER, id="a boot where there is no other"),
        pytest.param(set(), OTHER, id="the newest of all where none lives"),
    ],
)
def test_experiment_boot_is_not_newest_server(monkeypatch, alive, meant):
    """It is stopped in minutes; who names it has it nevertheless."""
    for run in registry.list_runs()[1:]:
        boot = replace(run, plan=replace(run.plan, env=run.plan.env | {EXPERIMENT_MARK: "20261121-012300-toy"}))
        (run.folder / "run.json").write_bytes(msgspec.json.encode(boot))
    monkeypatch.setattr(server_process, "is_alive", lambda run: run.id in alive)
    assert registry.find_run().id == meant
    assert registry.find_run(SECOND).id == SECOND


@pytest.mark.parametrize(("name", "many"), [("20261121-012400", True), ("2", True), ("", False), ("to", False)])
def test_ambiguous_or_unmatched_prefix_means_no_run(name, many):
    """An empty name, as of an empty variable in a script, is the start of none."""
    with pytest.raises(UsageError) as refused:
        registry.find_run(name)
    assert (SECOND in refused.value.hint) is many
