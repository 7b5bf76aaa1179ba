"""Lines of a failed server's log, and the known failure that each shows. Recorded failures are in test_cause.py."""

import pytest

from dflash_tui.events import Problem
from dflash_tui.vllm_output.known_failures import KNOWN_FAILURES, explain_failure, recognize_failure
from dflash_tui.vllm_output.log_reader import LogReader

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
    ("attention_head", "Reason: ['head_size not supported']", "head size"),
    ("attention_images", "Reason: ['partial multimodal token full attention not supported']", "reads images"),
    ("attention_dtype", "Reason: ['kv_cache_dtype not supported']", "KV cache of this type"),
    ("attention", "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig", "backend"),
    ("spec_method", "ValueError: Unsupported speculative method: 'dflash'", "method dflash"),
    ("spec_key", "Unexpected keyword argument [type=unexpected_keyword_argument]", "a key of its configuration"),
    ("spec_target", "RuntimeError: Model does not support EAGLE3 interface", "hidden states"),
    ("spec_mask", "ValueError: For parallel drafting, the draft model config must have `pard_token`", "drafting"),
    ("spec_window", "NotImplementedError: DFlash does not yet support mixed sliding/full attention", "vLLM 0.26"),
    ("spec_width", "ValueError: DFlash drafter expects 192 concatenated aux hidden features but received 64", "layers"),
    ("architecture", "ValueError: Model architectures ['X'] are not supported for now.", "transformers package"),
    ("kv_cache", "ValueError: No available memory for the cache blocks.", "--max-model-len"),
    ("memory_taken", "ValueError: Free memory on device cuda:0 (10.0/80.0 GiB) on startup is less than desired GPU "
     "memory utilization (0.9, 72.0 GiB).", "10.0 of 80.0 GiB are free, and the share of 0.9 asks for 72.0 GiB"),
    ("max_len", "User-specified max_model_len (99) is greater than the derived max_model_len (x=64)", "99 tokens"),
    ("hub_offline", "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach the hub", "HF_HUB_OFFLINE"),
    ("hub_down", "OSError: We couldn't connect to 'https://hub.example' to load the files", "could not be reached"),
    ("not_found", "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error.", "Check the name"),
    ("weights", "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata", "damaged"),
    ("wrong_build", "RuntimeError: CUDA error: no kernel image is available for execution on the device", "GPU"),
    ("driver_old", "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).", "driver 580"),
    ("kernel", "RuntimeError: Failed to find a kernel that can implement the NVFP4 linear layer", "does not run"),
    ("quantisation", "ValueError: The quantization method fp8 is not supported for the current GPU.", "quantisation"),
    ("timeout", "TimeoutError: RPC call to sample_tokens timed out.", "did not answer in time"),
    ("cancelled", "RuntimeError: cancelled", ""),
    ("validation", "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig", ""),
    ("init_failed", "RuntimeError: Engine core initialization failed. See root cause above.", ""),
    ("app_failed", "ERROR:    Application startup failed. Exiting.", ""),
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


@pytest.mark.parametrize(("kind", "line", "_words"), LINES)
def test_the_log_reader_takes_it_for_a_problem_of_that_kind(kind, line, _words):
    """With vLLM's prefix of an error and without; what a line of another level says is never a cause."""
    for prefix in ("", "(EngineCore pid=123) ERROR 11-22 10:00:00 [core.py:1] "):
        assert [event.kind for event in problems(prefix + line)] == [kind]
    assert problems(f"INFO 11-22 10:00:00 [core.py:1] {line}") == []


def problems(line: str) -> list[Problem]:
    return [event for event in LogReader(0.0, 0.0).feed_line(line) if isinstance(event, Problem)]


def test_each_kind_has_a_line():
    assert {kind for kind, _, _ in LINES} == {failure.kind for failure in KNOWN_FAILURES}
