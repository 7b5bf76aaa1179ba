"""What uses a server, on the demo: OpenAI's library by the printed wiring, `chat` in a pipe, and `verify`."""

import json
import subprocess
import sys

import pytest

from dflash_tui.runs import registry, verification

pytestmark = [pytest.mark.vllm, pytest.mark.long]
COMMAND = [sys.executable, "-m", "dflash_tui"]
PORT = "8751"


def test_clients_chat_and_verify(with_engine):
    """One boot for all three: a real library streams, a second line knows the first, every check has its result."""
    words = ["--port", PORT, "--wait", "--set", "max-model-len=512"]  # toy weights answer up to its end
    up = subprocess.run([*COMMAND, "up", "toy", *words], capture_output=True, text=True, check=False, timeout=900)
    assert up.returncode == 0, up.stderr
    [run] = registry.list_runs()
    assert f"{run.url}/v1" in up.stderr

    python = told("ps", "--for", "python").stdout
    library = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, check=False, timeout=900)
    assert library.returncode == 0, library.stderr
    assert library.stdout.strip()

    chat = told("chat", "--json", "--temperature", "0", said="Once upon a time\nand then\n")
    first, second = (json.loads(line) for line in chat.stdout.splitlines())
    assert first["text"]
    assert first["request"]["steps"] > 0
    assert second["request"]["prompt_tokens"] > first["request"]["prompt_tokens"]

    verify = told("verify", "toy", "--json")
    checks = {check["name"]: check["result"] for check in json.loads(verify.stdout)["checks"]}
    assert checks == {
        "answers": "passed", "streams": "passed", "tool call": "skipped", "reasoning": "skipped",
        "long context": "passed", "acceptance": "passed", "output": "skipped",
    }  # fmt: skip
    assert verification.list_verifications()["toy"].run == run.id
    told("stop")


def told(*words: str, said: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, input=said, timeout=900)
    assert done.returncode == 0, done.stderr
    return done
