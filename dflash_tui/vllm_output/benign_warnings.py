"""Explain warnings of a vLLM log that look bad and are harmless. Pure.

Every text was seen in recordings of servers that worked (vLLM 0.20 to 0.32), or read in vLLM's sources. A warning about
something that slows the server down says so.
"""

from __future__ import annotations

_BENIGN = (
    ("Enforce eager set, disabling torch.compile", "this is what eager mode means"),
    ("Inductor compilation was disabled by user settings", "follows from eager mode"),
    ("and failed to automatically increase with error current limit", "matters only to thousands of clients"),
    ("max_num_scheduled_tokens is set to",
     "room for drafted tokens is set aside; a larger max-num-batched-tokens shortens long prefills"),
    ("min_p and logit_bias parameters won't work with speculative decoding", "few requests use them"),
    ("Default vLLM sampling parameters have been overridden by the model's",
     "the model's own sampling parameters, as its authors advise; a comparison must set the temperature itself"),
    ("No FlashInfer autotune cache entries found", "nothing was tuned for these shapes; defaults are used"),
    ("JIT compilation during inference", "the first request of this shape waits for a kernel, later ones do not"),
    ("Using default MoE config. Performance might be sub-optimal",
     "nobody tuned this MoE shape for this GPU; it works, perhaps a little slower"),
    ("Model Runner V2 requires Triton; using the V1 model runner", "the older runner works as well"),
    ("Triton is not installed", "vLLM on a CPU works without it"),
    ("is not found in LD_PRELOAD", "slower on a CPU, nothing else"),
    ("Speculative decoding on CPU without Intel OpenMP", "slower on a CPU, nothing else"),
    ("CPU backend doesn't allow to use `torch.set_num_threads`", "threads are bound already"),
    ("Async scheduling not supported with", "vLLM switches it off automatically"),
    ("No available shared memory broadcast block found in",
     "workers are busy, for instance compiling; they hang only if it persists after ready"),
    ("Address already in use. Retrying with a new port", "an internal port; vLLM tries the next one"),
    ("force killing remaining process", "vLLM kills its workers like this at every stop, also an intended one"),
    ("force killing sub process", "vLLM kills its workers like this at every stop, also an intended one"),
    ("resource_tracker: There appear to be", "written at most stops"),
    ("destroy_process_group() was not called before program exit", "written at most stops"),
    ("Compiling model again due to a load failure", "the cached compilation does not fit; only this start is slower"),
    ("Your GPU does not have native support for FP4 computation",
     "Marlin reads FP4 weights where a GPU has no FP4 arithmetic; on one that has, an alarm says so"),
    ("FutureWarning: ", "meant for vLLM's developers"),
    ("DeprecationWarning: ", "meant for vLLM's developers"),
    ("with an incorrect regex pattern",
     "transformers guesses by the tokenizer's shape; check it only if answers look wrong"),
    ("NUMA binding: Using MEMBIND policy", "says where memory is bound"),
)  # fmt: skip


def explain_benign_warning(text: str) -> str:
    """Return why a warning is harmless; empty when it is not known to be."""
    return next((why for words, why in _BENIGN if words in text), "")
