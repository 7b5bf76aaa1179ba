"""What plans say of a release in which a pair runs wrong: the reference, and the release or patch that mends it."""

from collections.abc import Mapping
from typing import Any

import pytest

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes.recipe import EngineSpec
from tests.support.plans import resolve

NOTHING: Mapping[str, Any] = {}


def defects(recipe: str, vllm: str, settings: Mapping[str, Any] = NOTHING, **choices: Any) -> tuple[str, ...]:
    """Return the warnings of a plan that are about its release."""
    engine = EngineSpec(vllm=vllm, packages=(f"vllm=={vllm}",))
    tokens = choices.pop("tokens", None)
    resolved = resolve(recipe, Hardware.H100, engine=engine, settings=settings, **choices)
    plan = build_plan(resolved, num_speculative_tokens=tokens)
    return tuple(warning for warning in plan.warnings if warning.startswith(f"vLLM {vllm}: "))


@pytest.mark.parametrize(
    ("vllm", "references"),
    [
        ("0.20.2", ["vllm#40898"]),
        ("0.21.0", ["vllm#40898", "vllm#42175"]),
        ("0.24.0", ["vllm#40898"]),
        ("0.25.1", ["vllm#40898"]),
        ("0.26.0", []),
        ("0.33.0", []),
        ("0.25.0rc1", []),  # no release
    ],
)
def test_plan_names_defects_of_its_release(vllm, references):
    """And which release is the first without it; what is in a development build nobody can tell from its number."""
    found = defects("gemma-4-26b-a4b", vllm)
    assert [reference for text in found for reference in references if reference in text] == references
    assert len(found) == len(references)
    assert all("--vllm 0.2" in text for text in found)


def test_patch_removes_its_defect():
    name = "gemma4-draft-mm-prefix"
    [unmended] = [text for text in defects("gemma-4-26b-a4b", "0.23.0") if "42175" in text]
    assert f"--set patches.{name}=true" in unmended
    assert not [text for text in defects("gemma-4-26b-a4b", "0.23.0", {f"patches.{name}": True}) if "42175" in text]


def test_plan_warns_of_needed_but_disabled_patch():
    """Where the release needs it: the plan says what goes wrong without it, and since when upstream has it."""
    without = {"patches.dflash-aux-layers": False}
    [missed] = [text for text in defects("qwen3.5-27b", "0.21.0", without) if "40727" in text]
    assert "--vllm 0.22.0" in missed
    assert defects("qwen3.5-27b", "0.22.0", without) == ()
    assert defects("qwen3.5-27b", "0.21.0") == ()
