"""Data sets from the hub's cache, and what is said where they cannot be had."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from dflash_tui.benchmark import suites
from dflash_tui.common.errors import DflashError
from dflash_tui.engines import download, model_hub
from tests.support.hub_server import COMMIT, Hub

LINE = {"question_id": 1, "category": "math", "prompt": ["How many?", "And now?"]}
ROWS = "main/test-00000-of-00001.parquet"


def fetch(name: str) -> Path:
    return asyncio.run(download.fetch_dataset(name, lambda _event: None))


def put_into_cache(repo: str, name: str, data: bytes) -> None:
    folder = model_hub.repository_folder(f"datasets/{repo}")
    path = folder / "snapshots" / COMMIT / name
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)


@pytest.fixture(autouse=True)
def offline(hub, monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def server(hub: Hub, monkeypatch) -> Hub:
    monkeypatch.delenv("HF_HUB_OFFLINE")
    return hub


def test_cached_dataset_needs_no_hub():
    """As huggingface_hub lays out data sets; nothing is asked."""
    put_into_cache("HuggingFaceH4/mt_bench_prompts", "raw/question.jsonl", json.dumps(LINE).encode())
    assert (model_hub.hub_cache_folder() / "datasets--HuggingFaceH4--mt_bench_prompts").is_dir()
    assert fetch("mt-bench") == suites.find_dataset_file("mt-bench")
    assert [p.text for p in suites.load_suite("mt-bench").prompts] == ["How many?"]


def test_missing_file_is_reported():
    with pytest.raises(DflashError) as caught:
        fetch("gsm8k")
    assert caught.value.evidence.startswith("offline: ")
    with pytest.raises(DflashError) as caught:
        fetch("spec-bench")  # it is on no hub
    assert "hemingkx/Spec-Bench" in caught.value.hint


def test_rows_of_a_parquet_file_are_questions(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    rows = arrow.table({"question": ["2 + 2?", "3 + 3?"], "answer": ["#### 4", "#### 6"]})
    parquet.write_table(rows, tmp_path / "rows.parquet")
    put_into_cache("openai/gsm8k", ROWS, (tmp_path / "rows.parquet").read_bytes())
    fetch("gsm8k")
    assert [p.text[:5] for p in suites.load_suite("gsm8k").prompts] == ["2 + 2", "3 + 3"]


def test_fetched_dataset_keeps_its_prompts(server):
    """One file of it alone; the copy stays when the hub's cache is gone."""
    server.repos["datasets/HuggingFaceH4/mt_bench_prompts"] = {
        "raw/question.jsonl": json.dumps(LINE).encode(),
        "README.md": b"# MT",
    }
    assert fetch("mt-bench") == suites.fetched_dataset_file("mt-bench")
    assert {asked.path.partition("/resolve/")[2] for asked in server.asked if asked.sent} == {"main/raw/question.jsonl"}
    shutil.rmtree(os.environ["HF_HOME"])
    assert [p.text for p in suites.load_suite("mt-bench").prompts] == ["How many?"]
