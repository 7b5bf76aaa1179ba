"""A drafter that is shipped with its weights: another one is another build, and without it there is no speculation."""

import shutil
from pathlib import Path

import pytest

from dflash_tui.common import paths
from dflash_tui.planning import plan_builder
from dflash_tui.planning.plan import Plan
from tests.support.plans import plan_of


@pytest.fixture
def weights(tmp_path, monkeypatch) -> Path:
    """Return the weights of the shipped drafter in an installation of its own."""
    for kind in ("recipes", "patches"):
        shutil.copytree(paths.bundled_folder(kind), tmp_path / kind)
    monkeypatch.setattr(paths, "PACKAGE_ROOT", tmp_path)
    file: Path = tmp_path / "recipes" / "demo-drafter" / "model.safetensors"
    file.write_bytes(b"weights")
    return file


def planned(**settings: str) -> Plan:
    plan_builder._digest_sources.cache_clear()
    return plan_of("demo-cpu", settings=settings)


def test_other_weights_are_another_build(weights):
    before = planned()
    weights.write_bytes(b"retrained")
    assert planned().models_folder != before.models_folder
    assert before.drafter == f"{before.models_folder}/drafter"


def test_the_target_is_served_without_a_drafter(weights):
    """The plan says which file is missing; a drafter that is named by hand is used."""
    weights.unlink()
    plan = planned()
    assert (plan.num_speculative_tokens, plan.drafter) == (0, "")
    assert "--speculative-config" not in plan.argv
    assert any("no speculation" in warning and str(weights) in warning for warning in plan.warnings)
    by_hand = planned(**{"drafter.model": "/mine/drafter"})
    assert (by_hand.num_speculative_tokens, by_hand.drafter) == (7, "/mine/drafter")
