"""The failures of a vLLM server that are known by their text, and what to do about each. Pure.

The texts were read in the sources of vLLM 0.18 to 0.33, torch, huggingface_hub and uvicorn, or recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dflash_tui.core.events import Problem


class Failure(NamedTuple):
    """A known failure: its name, the text that shows it and what to do."""

    kind: str
    pattern: re.Pattern[str]
    do: str


def _table(rows: Iterable[tuple[str, str, str]]) -> tuple[Failure, ...]:
    return tuple(Failure(kind, re.compile(pattern), do) for kind, pattern, do in rows)


# These only say that something above went wrong; they are the cause when nothing better is in the log.
GENERIC = frozenset({"engine_dead", "init_failed", "app_failed", "validation"})

KNOWN = _table(
    (
        ("arguments", r"^vllm(?: serve)?: error: ", "This vLLM does not take the flag; correct the recipe."),
        ("attention", r"No valid attention backend found for |non-causal attention not supported|"
                      r"Only causal attention is supported|head_size not supported|"
                      r"partial multimodal token full attention not supported|kv_cache_dtype not supported",
         "Choose another attention backend for the target or for the drafter."),
        ("spec_method", r"Unsupported speculative method: '|Input should be '(?:ngram|medusa)'",
         "This vLLM does not know the speculation method; DFlash needs vLLM 0.20 or newer."),
        ("spec_target", r"(?:dflash|eagle3|extract_hidden_states) is only supported for \[|"
                        r"Model does not support EAGLE3 interface",
         "This vLLM cannot give the drafter the target's hidden states; use a newer vLLM or its patch."),
        ("spec_window", r"DFlash does not yet support mixed sliding/full attention|"
                        r"DFlash drafters with mixed sliding/full attention require the V2 model runner",
         "This drafter mixes sliding and full attention: vLLM 0.26 or newer with the V2 model runner."),
        ("spec_width", r"DFlash drafter expects \d+ concatenated aux hidden features",
         "Target and drafter do not belong together; check both names."),
        ("architecture", r"does not recognize this architecture|"
                         r"Model architectures .* (?:are not supported|failed to be inspected)|"
                         r"No module named 'transformers\.models\.\w+'",
         "The transformers package of this engine does not know the model; use the recipe's pins."),
        ("kv_cache", r"To serve at least one request with the models?'s max seq len|"
                     r"No available memory for the cache blocks",
         "Lower --max-model-len or raise the memory given to the server."),
        ("memory_taken", r"on startup is less than desired GPU memory utilization|"
                         r"^(?:\w+: )?Available memory on node \d+",
         "Something else holds the memory; end it or lower --gpu-memory-utilization."),
        ("max_len", r"User-specified max_model_len \(\d+\) is greater than the derived max_model_len",
         "Lower --max-model-len to what the model was made for."),
        ("out_of_memory", r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|"
                          r"CUBLAS_STATUS_ALLOC_FAILED",
         "Lower --gpu-memory-utilization, --max-model-len or --max-num-seqs."),
        ("gated", r"GatedRepoError|You are trying to access a gated repo|Cannot access gated repo",
         "Accept the model's terms on the hub and export HF_TOKEN."),
        ("not_found", r"RepositoryNotFoundError|is not a local folder and is not a valid model identifier|"
                      r"HFValidationError|Invalid repository ID or local directory specified|"
                      r"LocalEntryNotFoundError",
         "The model is neither a folder here nor in the cache, or the hub does not know it; check the name."),
        ("port_in_use", r"\[Errno 98\] ", "Another program listens on the port; choose another with --port."),
        ("wrong_build", r"no kernel image is available for execution on the device|"
                        r"the provided PTX was compiled with an unsupported toolchain|"
                        r"libcudart\.so\.\d+: cannot open shared object file",
         "This engine was built for another GPU or CUDA; reinstall it."),
        ("missing_module", r"^ModuleNotFoundError: No module named ",
         "A feature that was chosen needs a package that this engine lacks; choose another backend or reinstall it."),
        ("driver_old", r"The NVIDIA driver on your system is too old|"
                       r"CUDA driver version is insufficient for CUDA runtime version",
         "CUDA 13 wheels need driver 580 or newer."),
        ("kernel", r"cutlass_gemm_caller|This kernel only supports sm120|Failed to find a kernel that can "
                   r"implement the (?:ScaledMM|WNA16|NVFP4|MXFP\d) linear layer",
         "The quantisation kernel does not run on this GPU."),
        ("quantisation", r"(?:The quantization method .+|Quantization scheme) is not supported for the current GPU",
         "Choose a quantisation that this GPU supports."),
        ("device_fault", r"device-side assert triggered|illegal memory access|unspecified launch failure",
         "Try --enforce-eager, TRITON_ATTN for the drafter, or fewer speculative tokens."),
        ("timeout", r"RPC call to \w+ timed out|RayChannelTimeoutError",
         "A worker did not answer in time; raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS."),
        ("validation", r"^pydantic_core\.\S+ValidationError: ", ""),
        ("engine_dead", r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)", ""),
        ("init_failed", r"Engine core initialization failed\. See root cause above", ""),
        ("app_failed", r"Application startup failed\. Exiting\.", ""),
    )
)  # fmt: skip
_ADVICE = {failure.kind: failure.do for failure in KNOWN}


def recognise(text: str) -> str:
    """Return the kind of the known failure that `text` shows, or an empty string."""
    return next((failure.kind for failure in KNOWN if failure.pattern.search(text)), "")


def advice(kind: str) -> str:
    """Return what to do about a failure of this kind, or an empty string."""
    return _ADVICE.get(kind, "")


def root_cause(problems: Iterable[Problem]) -> Problem | None:
    """Return the problem that explains a death: the first that is more than "see above", else the first."""
    seen = list(problems)
    return next((p for p in seen if p.kind not in GENERIC), seen[0] if seen else None)
