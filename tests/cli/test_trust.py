"""A recipe that is not ours and may do more than serve a model: nothing is run before somebody says yes to it."""

import asyncio
import json

import pytest
import yaml

from dflash_tui.cli import main
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, EngineError, UsageError
from dflash_tui.engines import environments
from dflash_tui.experiments import controller, store
from dflash_tui.launch import preparation
from dflash_tui.runs import registry
from tests.support import command_line, fake_engine
from tests.support.fake_runs import free_port

PRELOAD = "LD_PRELOAD=/nowhere/evil.so"


@pytest.fixture
def engine():
    """An installed engine, and a recipe of the user's that loads a library into it."""
    fake_engine.make(free_port(19_600))
    change_recipe(LD_PRELOAD="/nowhere/evil.so")


def change_recipe(**env: str) -> None:
    file = paths.user_recipes_folder() / "fake.yaml"
    recipe = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(recipe | {"env": {"HF_HUB_OFFLINE": "1"} | env}))


def run(capsys, *words: str) -> tuple[int, str]:
    code = main.main([*words])
    return code, capsys.readouterr().err


# Every command that leads from a recipe to a process, or to one later.
COMMANDS = [
    ("up", "fake", "--detach"),
    ("up", "fake", "--detach", "--force", "I want it"),
    ("up", "fake", "--detach", "--json"),
    ("ab", "fake", "--yes", "--detach"),
    ("engine", "install", "fake"),
    ("service", "fake"),
    ("service", "fake", "--write"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_headless_it_is_refused_and_says_how(engine, capsys, words, folders):
    code, said = run(capsys, *words)
    assert code == 2
    assert PRELOAD in said
    assert "--trust" in said
    assert registry.list_runs() == []
    assert store.list_experiments() == []
    assert not paths.user_units_folder().exists()


def test_a_recipe_that_only_serves_a_model_is_not_asked_about(engine, capsys):
    change_recipe()
    assert run(capsys, "engine", "install", "fake")[0] == 0
    assert not paths.trusted_recipes_file().exists()


@pytest.mark.usefixtures("nothing_left")
def test_with_trust_it_is_launched(engine, capsys):
    assert run(capsys, "up", "fake", "--detach", "--trust")[0] == 0
    (launched,) = registry.list_runs()
    assert launched.plan.env["LD_PRELOAD"] == "/nowhere/evil.so"
    assert [power.source for power in launched.plan.powers] == [PRELOAD]


def test_trust_is_kept_until_the_recipe_changes(engine, capsys):
    """In a file for its owner alone; comments are no change."""
    install = ("engine", "install", "fake")
    assert run(capsys, *install, "--trust")[0] == 0
    assert run(capsys, *install)[0] == 0
    file = paths.user_recipes_folder() / "fake.yaml"
    file.write_text(f"# a remark\n{file.read_text()}")
    assert run(capsys, *install)[0] == 0
    change_recipe(LD_PRELOAD="/nowhere/worse.so")
    assert run(capsys, *install)[0] == 2
    assert run(capsys, *install, "--trust")[0] == 0
    change_recipe(LD_PRELOAD="/nowhere/evil.so")
    assert run(capsys, *install)[0] == 0
    assert paths.trusted_recipes_file().stat().st_mode & 0o777 == 0o600


def test_the_same_file_by_its_path_is_the_same_recipe(engine, capsys, tmp_path):
    """And a fetched file is asked about like any other."""
    copy = tmp_path / "fake.yaml"
    copy.write_text((paths.user_recipes_folder() / "fake.yaml").read_text())
    assert run(capsys, "engine", "install", str(copy))[0] == 2
    assert run(capsys, "engine", "install", "fake", "--trust")[0] == 0
    assert run(capsys, "engine", "install", str(copy))[0] == 0


def test_what_is_set_by_hand_is_the_users_own_word(engine, capsys):
    """Nobody asks about it; the plan shows it all the same."""
    change_recipe()
    setting = ("--set", f"env.{PRELOAD}", "--set", "trust_remote=true")
    assert run(capsys, "engine", "install", "fake", *setting)[0] == 0
    assert main.main(["plan", "fake", *setting]) == 0
    said = capsys.readouterr().out
    assert f"power    {PRELOAD}: " in said
    assert "power    --trust-remote: " in said


def test_shipped_recipes_are_ours_until_they_are_changed(capsys, monkeypatch):
    """A file of the user's by the same name is the user's."""

    async def installed(*_):
        raise EngineError("this far")

    monkeypatch.setattr(environments, "install_engine", installed)
    install = ("engine", "install", "gemma-4-31b", "--gpu", "h100")
    assert "this far" in run(capsys, *install)[1]
    shipped = (paths.bundled_folder("recipes") / "gemma-4-31b.yaml").read_text()
    paths.user_recipes_folder().mkdir(parents=True)
    (paths.user_recipes_folder() / "gemma-4-31b.yaml").write_text(shipped)
    assert "this far" in run(capsys, *install)[1]
    (paths.user_recipes_folder() / "gemma-4-31b.yaml").write_text(shipped.replace("31B-it\n", "31B-evil\n"))
    assert run(capsys, *install)[0] == 2


@pytest.mark.parametrize("answer", ["y", "n", ""])
def test_on_a_terminal_it_asks(engine, terminal, answer):
    """Once, with what the recipe may do; only yes is yes."""
    window = terminal("engine", "install", "fake")
    assert PRELOAD in window.until(b"[y/N]").decode()
    window.type(f"{answer}\r")
    assert window.ended() == (0 if answer == "y" else 2)
    if answer == "y":
        assert terminal("engine", "install", "fake").ended() == 0


def test_a_list_that_others_could_have_written_says_nothing(engine, capsys):
    assert run(capsys, "engine", "install", "fake", "--trust")[0] == 0
    paths.trusted_recipes_file().chmod(0o666)
    assert run(capsys, "engine", "install", "fake")[0] == 2
    paths.trusted_recipes_file().chmod(0o600)
    assert run(capsys, "engine", "install", "fake")[0] == 0


def test_no_way_to_a_process_leads_around_the_question(engine):
    """What every launch comes by asks again, for the panel and for a driver that was begun before a change."""
    planned = command_line.planned("fake")
    events: list[object] = []
    with pytest.raises(UsageError, match="fake may do"):
        asyncio.run(preparation.prepare_engine_and_models(planned.setup, planned.plan, events.append))
    assert events == []


def test_an_experiment_is_resumed_only_with_the_recipe_that_was_trusted(engine, capsys):
    design = command_line.experiment("fake")[0]
    store.create_experiment(design)
    code, said = run(capsys, "ab", "resume", design.id)
    assert (code, PRELOAD in said) == (2, True)
    with pytest.raises(DflashError) as error:
        controller.resume_experiment(design)
    assert "recipe fake may do" in error.value.evidence


def test_check_lists_what_recipes_may_do(engine, capsys):
    assert main.main(["recipes", "check"]) == 0
    said = capsys.readouterr().out
    assert f"\n  power  {PRELOAD}: " in said
    assert "\n  power  --trust-remote-code: " in said
    assert main.main(["recipes", "check", "fake", "--json"]) == 0
    (power,) = json.loads(capsys.readouterr().out)["powers"]
    assert (power["kind"], power["source"]) == ("code", PRELOAD)


def test_events_for_all_machines_need_a_key(engine, capsys, monkeypatch):
    """As a server on all addresses does, whoever set it, and whatever is forced."""
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    change_recipe()
    events = 'kv-events-config={"enable_kv_cache_events": true, "endpoint": "tcp://*:45557"}'
    for more in ((), ("--force", "I want it")):
        code, said = run(capsys, "up", "fake", "--detach", "--set", events, *more)
        assert code != 0
        assert "tcp://*:45557" in said
        assert "export VLLM_API_KEY" in said
    assert registry.list_runs() == []
