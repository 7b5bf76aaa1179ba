"""The flags of a plan against the parser of the real vLLM 0.32.0 for CPUs."""

import asyncio
import re
import subprocess
import sys
from typing import Any

import pytest
from msgspec.structs import replace
from textual.widgets import Static

from dflash_tui.common import paths
from dflash_tui.engines import inventory
from dflash_tui.engines.inventory import ServeOptions
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import recipe_loader, resolution
from dflash_tui.planning.request import format_advice
from dflash_tui.runs import registry
from dflash_tui.tui.app import DflashApp
from dflash_tui.tui.dialogs.doctor import name_key
from tests.tui.panel import NO_GPU, text, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.long]
COMMAND = [sys.executable, "-m", "dflash_tui"]


@pytest.fixture(scope="module")
def options(tmp_path_factory, demo_engine) -> ServeOptions:
    """Return what vLLM says it takes; it is asked once, and what it said is kept, and that it takes this command."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        paths.engines_folder().mkdir(parents=True)
        right = made("--max_num_seqs", "4")
        assert inventory.find_flag_mistakes(right, inventory.read_serve_options(demo_engine, right.argv[2:])) == []
        patched.setattr(subprocess, "Popen", None)
        assert inventory.find_flag_mistakes(right, inventory.read_serve_options(demo_engine, right.argv[2:])) == []
        return inventory.read_serve_options(demo_engine)


def made(*words: str, settings: dict[str, Any] | None = None) -> Plan:
    """Return the demo's plan with settings, and with words as a recipe of another release may have them."""
    found = build_plan(resolution.resolve_recipe(recipe_loader.find_recipe("demo-cpu"), settings=settings or {}))
    return replace(found, argv=(*found.argv, *words))


def test_vllm_serve_flags_are_listed(options):
    """Flags by name, each with its choices if it has any, and the keys of speculative-config."""
    assert {"--max-model-len", "--port", "--speculative-config", "--no-enable-prefix-caching"} <= set(options.flags)
    assert options.flags["--max-model-len"] is None
    kinds = options.flags["--kv-cache-dtype"]
    assert kinds
    assert {"auto", "fp8"} <= set(kinds)
    assert "--calculate-kv-scales" not in options.flags
    assert {"method", "model", "num_speculative_tokens", "attention_backend"} <= set(options.speculation)


def test_flags_in_every_spelling_are_valid(options):
    """In every way that vLLM itself takes a flag."""
    assert inventory.find_flag_mistakes(made(), options) == []
    settings = {"kv-cache-dtype": "auto", "enable-prefix-caching": False, "speculation.attention_backend": "TORCH_SDPA"}
    assert inventory.find_flag_mistakes(made(settings=settings), options) == []
    for words in (
        ["--max_num_seqs", "4"],
        ["--max-num-seqs", "4"],
        ["--no-enable-prefix-caching"],
        ["--enable-prefix-caching"],
        ["--kv_cache_dtype", "fp8_e5m2"],
        ["--compilation-config.mode", "3"],
        ["--seed", "-1"],
    ):
        assert inventory.find_flag_mistakes(made(*words), options) == [], words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-model-length", "4096"], "has no flag --max-model-length, did you mean --max-model-len?"),
        (["--gpu_memory-util", "0.5"], "--gpu_memory-util is short for --gpu-memory-utilization"),
        (["--calculate-kv-scales"], "vLLM 0.32.0 has no flag --calculate-kv-scales"),
        (["--no-such_thing_at_all"], "has no flag --no-such-thing-at-all"),
        (
            ["--kv-cache-dtype", "fp8_e4"],
            "--kv-cache-dtype fp8_e4 is not a choice; did you mean fp8_e4m3?",
        ),
        (["--kv_cache_dtype", "xyz"], "it takes auto, "),
        (
            ["--speculative-config", '{"methud": "dflash"}'],
            "no key methud in --speculative-config, did you mean method?",
        ),
    ],
)
def test_wrong_flag_is_named_with_suggestion(options, words, said):
    """One sentence for one mistake."""
    (sentence,) = inventory.find_flag_mistakes(made(*words), options)
    assert said in sentence


def test_the_parser_refuses_a_wrong_value(options, demo_engine, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    paths.engines_folder().mkdir(parents=True)
    wrong = made("--max-num-batched-tokens", "many")
    refused = inventory.read_serve_options(demo_engine, wrong.argv[2:])
    [sentence] = inventory.find_flag_mistakes(wrong, refused)
    assert "--max-num-batched-tokens" in sentence
    assert "many" in sentence
    assert inventory.read_cached_serve_options(demo_engine) == replace(options, accepted=())


def test_wrong_flag_found_by_doctor_blocks_launch(with_engine, tmp_path):
    """A wrong flag is found by the doctor before anything starts, and by the launch's own checks from then on."""
    shipped = (paths.bundled_folder("recipes") / "demo-cpu.yaml").read_text()
    (tmp_path / "wrong.yaml").write_text(shipped.replace("max-model-len: 4096", "max-model-length: 4096"))
    words = [str(tmp_path / "wrong.yaml")]
    asked = subprocess.run([*COMMAND, "doctor", *words], capture_output=True, text=True, check=False)
    assert asked.returncode == 4
    assert re.search(r"✗ flags: .* --max-model-length, did you mean --max-model-len\?", asked.stdout)
    launched = subprocess.run(
        [*COMMAND, "up", *words, "--trust", "--detach"], capture_output=True, text=True, check=False
    )
    assert launched.returncode == 4
    assert "it would not start" in launched.stderr
    assert "--set NAME=null" in launched.stderr
    asyncio.run(_refused_on_the_launch_screen())
    assert registry.list_runs() == []


async def _refused_on_the_launch_screen() -> None:
    """Enter shows what is wrong and what to do, and launches nothing unless somebody insists with a reason."""
    recipe = recipe_loader.find_recipe("demo-cpu")
    recipe = replace(recipe, flags={**recipe.flags, "max-model-length": 4096})
    panel = DflashApp(load=lambda: {"demo-cpu": recipe}, probe=lambda: NO_GPU)
    async with panel.run_test(size=(80, 24)) as pilot:
        await wait_for(pilot, lambda: "demo-cpu" in text(panel))
        await pilot.press("enter")
        await wait_for(pilot, lambda: "has no flag --max-model-length" in text(panel))
        shown = " ".join(str(panel.screen.query_one("#found", Static).content).split())
        assert "did you mean --max-model-len?" in shown
        assert f"→ {format_advice(inventory.FIX, name_key)}" in shown
        assert "1 of" in text(panel)
        assert "F" in panel.screen.active_bindings
        await pilot.press("escape")
        await pilot.pause()
        assert panel.screen is panel.launch_screen
