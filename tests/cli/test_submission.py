"""`report --submit`: the files of Spark-Arena and club-3090, and what refuses them."""

import csv
import json
from pathlib import Path

import msgspec
import pytest
import yaml

from dflash_tui.events import RequestDone
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.design import Conditions
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.recipes.recipe import Mode
from tests.support import boot_factories as made
from tests.support.command_line import run

ARGV = (
    "/engine/bin/vllm", "serve", "org/model", "--port", "8000", "--max-model-len", "65536",
    "--speculative-config", '{"method": "dflash", "num_speculative_tokens": 8}', "--enable-prefix-caching",
)  # fmt: skip
RANDOM = [made.request(f"random {n}", 10.0, prompt_tokens=2055, ttft=0.5, tokens=128) for n in range(4)]
PROMPTS = [
    made.request(kind, 10.0, total=10.0, tokens=500, sampling="temperature 0.6") for kind in ("narrative", "code")
]


def write(folder: Path, requests: list[RequestDone], **changes) -> str:
    """Write the report of an A/B of two modes, two boots each, and return its file."""
    usual = {"target": "org/model", "argv": ARGV, "hardware": Hardware.GB10, "vllm": "0.33.0", "env": {"A": "1"}}
    eager, compiled = (made.plan(**(usual | {"mode": mode} | changes)) for mode in (Mode.EAGER, Mode.COMPILE))
    design = made.design("mode", {"eager": eager, "compile": compiled}, (0, 1, 1, 0), suite="random:2048,128")
    after = Conditions(0.0, power_limit_w=230.0)
    boots = [made.boot(design, n, requests, after=after, gpus=("NVIDIA RTX 3090",)) for n in range(4)]
    path = folder / "ab.json"
    path.write_bytes(msgspec.json.encode(verdict.build_report(design, boots)))
    return str(path)


def test_arena_gets_recipe_table_and_metadata(tmp_path):
    """In their own formats; boots and interval are in a field of ours, and what is unknown is named."""
    said = run("report", write(tmp_path, RANDOM), "--submit", "spark-arena", "-o", str(tmp_path))
    assert "unknown, and left out: container, cluster_id" in said.stderr
    folder = tmp_path / "spark-arena-ab-compile"
    assert str(folder / "recipe.yaml") in said.stdout.splitlines()
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    assert (recipe["recipe_version"], recipe["model"], recipe["runtime"]) == ("2", "org/model", "vllm")
    assert recipe["defaults"]["max_model_len"] == "65536"
    assert json.loads(recipe["defaults"]["speculative_config"])["num_speculative_tokens"] == 8
    assert "--speculative-config '{speculative_config}'" in recipe["command"]
    assert "--enable-prefix-caching" in recipe["command"].split()
    rows = list(csv.DictReader((folder / "benchmark.csv").read_text().splitlines()))
    assert [row["test_name"] for row in rows] == ["pp2055", "tg128"]
    assert [row["t_s_mean"] for row in rows] == ["4110.0", "30.0"]
    assert (rows[0]["e2e_ttft_mean"], rows[0]["peak_ts_mean"], rows[1]["e2e_ttft_mean"]) == ("500.0", "", "")
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["benchmark"]["args"]["exact_tg"] is True
    notes = metadata["dflash_tui"]["notes"]
    assert notes[0] == "2 boots, median tok/s of each: 30.00, 30.00"
    assert notes[1].startswith("no difference shown between eager and compile in steps/s")
    assert notes[1].endswith("ratio 1.00 (0.94–1.07)")


def test_club_gets_a_row_of_its_table(tmp_path):
    said = run("report", write(tmp_path, PROMPTS), "--submit", "club-3090", "-o", str(tmp_path))
    assert "unknown, and left out: handle, PP, peak VRAM, soak, verify-stress" in said.stderr
    text = (tmp_path / "club-3090-ab-eager" / "ISSUE-body.md").read_text()
    row = text.splitlines()[-1]
    assert "| @your-handle (1× NVIDIA RTX 3090, 230 W/card)" in text.replace("&#8203;", "")
    assert "| auto | 65536 | 50.00 / 50.00 | — | — | 1970-01-01 | 2 boots" in row
    assert "temperature 0.6" in row


@pytest.mark.parametrize(
    ("form", "requests", "changes", "why"),
    [
        ("spark-arena", PROMPTS, {}, "--suite random:2048,128 --fixed sends such"),
        ("spark-arena", [*RANDOM[:1], made.request("random 9", 10.0)], {}, "the answers are not of one length"),
        ("spark-arena", RANDOM, {"hardware": Hardware.H200}, "takes figures of a DGX Spark, not of h200"),
        ("spark-arena", RANDOM, {"target": "/models/mine"}, "the model is a folder of this machine"),
        ("club-3090", RANDOM, {}, "one at a time: dflash-tui bench --suite club-3090"),
        ("club-3090", PROMPTS, {"synthetic": "toy weights"}, "not the figures of a real model on a GPU: toy weights"),
        ("club-3090", PROMPTS, {"argv": ()}, "the launches of running servers are unknown"),
    ],
)
def test_unknown_fields_refuse_a_submission(tmp_path, form, requests, changes, why):
    error = run("report", write(tmp_path, requests, **changes), "--submit", form, "-o", str(tmp_path), code=2).stderr
    assert error.startswith(f"dflash-tui: error: nothing was written for {form}")
    assert why in error
    assert [path.name for path in tmp_path.iterdir()] == ["ab.json"]
