"""What the fuzzer has found, and what it learned most from, once more: `python -m tests.fuzz` looks for others."""

import subprocess
import sys

import pytest

from tests.fuzz import targets

_REPLAY = """
import sys
from pathlib import Path
from tests.fuzz import targets
for path in sorted(Path(sys.argv[1]).iterdir()):
    print(path.name, flush=True)
    targets.chart(path.read_bytes())
for seed in targets.seeds("chart"):
    targets.chart(seed)
print("alive")
"""


@pytest.mark.parametrize("target", [name for name in targets.TARGETS if name != "chart"])
def test_corpus_input_keeps_promise(target):
    """Each input keeps what its target promises, and so does what the fuzzer begins with."""
    kept = sorted((targets.CORPUS / target).iterdir())
    assert kept
    for path in kept:
        targets.TARGETS[target](path.read_bytes())
    for seed in targets.seeds(target):
        targets.TARGETS[target](seed)


def test_drawn_corpus_input_keeps_promise():
    """In another process, since plotext would end it."""
    argv = [sys.executable, "-c", _REPLAY, str(targets.CORPUS / "chart")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{done.stdout[-500:]}\n{done.stderr[-2000:]}"
    assert done.stdout.endswith("alive\n")
