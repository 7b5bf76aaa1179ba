"""A recipe whose models are on the hub, from an empty cache to an answering server: real vLLM, a local hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dflash_tui.common import paths
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.runs import registry
from tests.support import hub_server, toy_pair

pytestmark = [pytest.mark.vllm, pytest.mark.long]
COMMAND = [sys.executable, "-m", "dflash_tui"]
TOKEN = "hf_of_the_test"


def built(folder: Path, python: Path) -> dict[str, dict[str, bytes]]:
    """Return the demo's target and drafter as two repositories."""
    subprocess.run([python, toy_pair.SCRIPT, folder], check=True, capture_output=True)
    repos = {"demo/target": folder / "target", "demo/drafter": folder / "drafter"}
    return {repo: {file.name: file.read_bytes() for file in at.iterdir()} for repo, at in repos.items()}


def recipe() -> None:
    """Write a recipe of the user's: the demo, with its models on the hub."""
    told = yaml.safe_load(recipe_loader.recipe_path("toy").read_text())
    del told["build"]
    told["bench_scale"] = 0.2
    told["target"]["model"], told["drafter"]["model"] = "demo/target", "demo/drafter"
    path = paths.user_recipes_folder() / "from-hub.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(told))


def test_models_are_fetched_and_served(with_engine, demo_engine, tmp_path):
    """Missing models are fetched with progress and the server answers from the cache; the token is kept nowhere."""
    recipe()
    words = ["up", "from-hub", "--bench", "--detach", "--json", "--trust", "--port", "8747"]
    with hub_server.running() as hub:
        hub.repos = built(tmp_path / "models", demo_engine.python)
        env = os.environ | {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_TOKEN": TOKEN}
        done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, env=env, timeout=900)
        [run] = registry.list_runs()
        try:
            assert done.returncode == 0, done.stderr
            events = [json.loads(line) for line in done.stdout.splitlines()]
            assert [e["check"]["name"] for e in events if e["event"] == "check" and e["check"]["level"] == "fail"] == []
            fetched = [e["text"] for e in events if e["event"] == "preparing" and e["step"] == "models" and e["done"]]
            assert any("demo/target" in text for text in fetched)
            assert any("demo/drafter" in text for text in fetched)
            [measured] = [event for event in events if event["event"] == "measured"]
            assert measured["failed"] == 0
            assert measured["acceptance_length"] > 3
            assert {asked.authorization for asked in hub.asked} == {f"Bearer {TOKEN}"}
            for told in (done.stdout, done.stderr, *(file.read_text() for file in run.folder.iterdir())):
                assert TOKEN not in told
        finally:
            subprocess.run([*COMMAND, "stop"], check=True, capture_output=True)
