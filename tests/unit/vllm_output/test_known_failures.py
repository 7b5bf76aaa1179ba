"""Lines of a failed server's log, and the known failure that each shows. Recorded failures are in test_cause.py."""

import pytest

from dflash_tui.vllm_output.known_failures import KNOWN_FAILURES, explain_failure, recognize_failure

# The kind, a line as it is in the log, and words of the cause or of the fix, with what the line itself states.
LINES = [
    ("arguments", "vllm serve: error: unrecognized arguments: --no-such-flag", "no flag --no-such-flag"),
    ("attention_causal", "ValueError: … Reason: ['non-causal attention not supported']", "needs non-causal attention"),
    ("out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "ran out of memory"),
    ("gated", "OSError: You are trying to access a gated repo.", "export HF_TOKEN"),
    ("port_in_use", "OSError: [Errno 98] Address already in use", "another program uses the port"),
    ("open_files", "OSError: [Errno 24] Too many open files", "ulimit -n"),
    ("disk_full", "OSError: [Errno 28] No space left on device", "df -h"),
    ("parallel", "Total number of attention heads (30) must be divisible by tensor parallel size (4).",
     "30 attention heads cannot be divided among 4 GPUs"),
    ("missing_module", "ModuleNotFoundError: No module named 'cutlass'", "needs the package cutlass"),
    ("worker_died", "Worker proc VllmWorker-1 died unexpectedly (exit code: -9)", "exit code -9"),
    ("device_fault", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "illegally"),
    ("engine_dead", "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", ""),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "line", "words"), LINES)
def test_a_line_shows_its_failure(kind, line, words):
    match = explain_failure(line)
    assert match is not None
    assert match.kind == recognize_failure(line) == kind
    assert words in f"{match.cause} {match.fix}"


@pytest.mark.parametrize("line", ["", "all is well", "ValueError: something that nobody has seen"])
def test_another_line_shows_none(line):
    assert (explain_failure(line), recognize_failure(line)) == (None, "")


def test_no_line_is_of_a_failure_that_is_gone():
    assert {kind for kind, _, _ in LINES} <= {failure.kind for failure in KNOWN_FAILURES}
