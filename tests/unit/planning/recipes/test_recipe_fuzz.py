"""Any recipe file and any setting: a recipe or one error, a plan or one error, and values that stay single words."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dflash_tui.common.errors import RecipeError, ServerFailed, UsageError
from dflash_tui.machine.hardware import TYPICAL, Hardware
from dflash_tui.planning import memory, serve_flags
from dflash_tui.planning.cluster import RankCommand
from dflash_tui.planning.memory import GpuMemory
from dflash_tui.planning.plan import Plan, format_command
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.runs import lifecycle
from tests.unit.planning.recipes.test_recipe import FULL

# Not derandomized: every run may find something new, and what it found is printed. FUZZ_TIMES=100 looks longer.
fuzz = settings(
    database=None,
    max_examples=80 * int(os.environ.get("FUZZ_TIMES", "1")),
)
NASTY = [
    "",
    " ",
    "--host=0.0.0.0",
    "-O3",
    "-0.5",
    "$(id)",
    "`id`",
    "a b",
    "a'b\"c",
    "; rm -rf /",
    "\n",
    "a\n",
    "\x1b[2J",
]
NASTY += ["\x00", "\x9b31m", "\ud800", "../x", "{cache}", "é\u202e", "0.33.0", "null", "~", "=", "[...]", "`", "a.b[0]"]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(NASTY), st.text(max_size=20), st.dates()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NASTY) | st.text(), inner, max_size=3),
    max_leaves=6,
)


def loaded(path: Path) -> Recipe | None:
    """The recipe, or None when the loader names the file and says why not; nothing else may come out."""
    try:
        return recipe_loader.load_recipe(path)
    except RecipeError as error:
        said = str(error)
    assert said.startswith(f"{path}:")
    return None


def places(tree: Any) -> list[tuple[Any, Any]]:
    """Each container of the tree with each of its keys or indices."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [place for key, part in items for place in [(tree, key), *places(part)]]


def every_plan(recipe: Recipe) -> list[Plan]:
    """All plans of a recipe, with their memory arithmetic done."""
    found = []
    for hardware in [*recipe.hardware, Hardware.CPU, Hardware.UNKNOWN]:
        for profile in resolution.list_profiles(recipe):
            for variant in ["", *recipe.variants]:
                made = resolution.resolve_recipe(recipe, hardware, profile=profile, variant=variant)
                plan = build_plan(made)
                if typical := TYPICAL.get(hardware):
                    machine = GpuMemory(hardware, typical.memory_total, typical.memory_total, typical.unified)
                    memory.estimate_memory(made, machine, mode=plan.mode, tokens=plan.num_speculative_tokens)
                found.append(plan)
    return found


def is_sound(plan: Plan) -> None:
    """Every word is one that a process can get, the server stays on this machine, and the shown command is the same."""
    for word in (*plan.argv, *plan.env, *plan.env.values()):
        assert "\0" not in word
        word.encode()
    texts = [text for text in re.split(r"(?m)^# rank .*\n", format_command(plan)) if text]
    ranks: list[Plan | RankCommand] = [plan, *plan.ranks]
    for text, rank in zip(texts, ranks, strict=True):
        shown = shlex.split(text.replace(" \\\n", " "))
        assert shown == [*(f"{name}={value}" for name, value in rank.env.items()), *rank.argv]
    options = [word.partition("=")[0] for word in plan.argv[3:] if word.startswith("-")]
    assert options.count("--host") == options.count("--port") == 1
    assert plan.argv[plan.argv.index("--host") + 1] == "127.0.0.1"
    assert all(serve_flags.explain_reserved_flag(name) == "" for name in options[5:] if name not in OURS), options


OURS = {"--host", "--port", "--served-model-name", "--speculative-config", "--enforce-eager", "--revision"} | {
    "--disable-access-log-for-endpoints"
}


@fuzz
@given(data=st.data())
def test_changed_recipe_loads_or_gives_one_error(tmp_path, data):
    tree = yaml.safe_load(FULL)
    for _ in range(data.draw(st.integers(1, 3))):
        all_places = places(tree)
        holder, key = all_places[data.draw(st.integers(0, len(all_places) - 1))]
        change = data.draw(st.sampled_from(["replace", "delete", "rename"]))
        if change == "replace":
            holder[key] = data.draw(values)
        elif change == "delete" or isinstance(holder, list):
            del holder[key]
        else:
            holder[data.draw(scalars.filter(lambda value: not isinstance(value, float)))] = holder.pop(key)
        if not places(tree):
            break
    path = tmp_path / "demo-cpu.yaml"
    path.write_text(yaml.safe_dump(tree, allow_unicode=data.draw(st.booleans())), encoding="utf-8", errors="replace")
    if recipe := loaded(path):
        msgspec.json.encode(recipe)
        for plan in every_plan(recipe):
            is_sound(plan)


KEYS = [
    "chat-template",
    "max-model-len",
    "hf-overrides",
    "gpu-memory-utilization",
    "tensor-parallel-size",
    "n",
    "env.X",
]
KEYS += ["speculation.attention_backend", "speculation.model", "target.model", "target.served_name", "target.revision"]
KEYS += ["drafter.model", "drafter.revision", "drafter.served_name", "synthetic", "host", "env.", ".", "", "a=b", "-x"]


@fuzz
@given(changes=st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=12), values, max_size=3))
@example(changes={"chat-template": "\ud800"})
def test_fuzzed_settings_give_plan_or_one_error(changes):
    recipe = recipe_loader.find_recipe("gemma-4-31b")
    try:
        made = resolution.resolve_recipe(recipe, Hardware.GB10, settings=changes)
    except UsageError:
        return
    plan = build_plan(made)
    typical = TYPICAL[Hardware.GB10]
    machine = GpuMemory(Hardware.GB10, typical.memory_total, typical.memory_total, typical.unified)
    memory.estimate_memory(made, machine, mode=plan.mode, tokens=plan.num_speculative_tokens)
    is_sound(plan)


def test_a_server_is_started_without_a_shell(monkeypatch, folders):
    """The words reach the process as they are, even those a shell would run."""
    seen: dict[str, Any] = {}

    def popen(argv, **given):
        seen.update(given, argv=argv)
        raise OSError("enough")

    monkeypatch.setattr(subprocess, "Popen", popen)
    changes = {"chat-template": "$(touch x); a 'b'", "env.X": "`id`"}
    plan = build_plan(resolution.resolve_recipe(recipe_loader.find_recipe("gemma-4-31b"), settings=changes))
    with pytest.raises(ServerFailed, match="could not be started"):
        lifecycle.launch_server(plan, engine="vllm 0.33.0")
    assert not seen.get("shell")
    assert tuple(seen["argv"][-len(plan.argv) :]) == plan.argv
    assert "$(touch x); a 'b'" in seen["argv"]
    assert seen["env"]["X"] == "`id`"
