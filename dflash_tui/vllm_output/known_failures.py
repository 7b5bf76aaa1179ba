"""Known failures of a vLLM server: the log text that identifies each, its cause and its fix. Pure.

The texts were read in the sources of vLLM 0.18 to 0.33, torch, huggingface_hub and uvicorn, or recorded. A group in a
pattern, `(?P<free>…)`, fills the same name in the cause and in the fix, so that both state vLLM's own numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from dflash_tui.events import Problem


class KnownFailure(NamedTuple):
    """A known failure: its name, the log text that identifies it, its cause, and its fix, which may be empty."""

    kind: str
    pattern: re.Pattern[str]
    cause: str
    fix: str


_MAX_QUOTE = 200
# These only say that something failed before; none of them is ever shown as a cause.
SYMPTOMS = frozenset({"engine_dead", "init_failed", "app_failed", "validation", "cancelled"})

KNOWN_FAILURES = tuple(
    KnownFailure(kind, re.compile(pattern), cause, fix)
    for kind, pattern, cause, fix in (
        ("arguments", r"^vllm(?: serve)?: error: unrecognized arguments: (?P<flag>-\S+)",
         "this vLLM has no flag {flag}",
         "Remove the flag, or spell it as this vLLM does."),
        ("arguments", r"^vllm(?: serve)?: error: argument (?P<flag>-[^\s:/]+)\S*: ",
         "this vLLM does not accept the value of {flag}",
         "Correct the value, or remove the flag."),
        ("arguments", r"^vllm(?: serve)?: error: ",
         "this vLLM does not accept a flag of the command",
         "Correct the recipe, or remove the flag."),
        ("attention_head", r"head_size not supported",
         "the chosen attention backend does not support the target's head size",
         "Let vLLM choose the target's attention backend; set one for the drafter only."),
        ("attention_causal", r"non-causal attention not supported|Only causal attention is supported",
         "a DFlash drafter needs non-causal attention, which no attention backend that vLLM tried supports here",
         "Use vLLM 0.24 or newer, the patches of the recipe's seed profile, or another backend for the drafter."),
        ("attention_images", r"partial multimodal token full attention not supported",
         "FlashAttention was asked to draft for a target that also reads images",
         "Use TRITON_ATTN for the drafter, or no images: limit-mm-per-prompt."),
        ("attention_dtype", r"kv_cache_dtype not supported",
         "the attention backend cannot read a KV cache of this type",
         "Leave kv-cache-dtype at auto, or use TRITON_ATTN for the drafter."),
        ("attention", r"No valid attention backend found for ",
         "no attention backend of this vLLM can serve the pair on this device",
         "The log line gives the reason for each backend; choose another for the target or for the drafter."),
        ("spec_method", r"Unsupported speculative method: '(?P<method>[^']*)'|"
                        r"Input should be '(?:ngram|medusa)'.*input_value='(?P<given>[^']*)'|"
                        r"Input should be '(?:ngram|medusa)'",
         "this vLLM does not know the speculation method {method}{given}",
         "DFlash needs vLLM 0.20 or newer."),
        ("spec_key", r"^(?:Unexpected keyword argument|Extra inputs are not permitted)",
         "this vLLM does not know a key of its configuration, which the line above names",
         "Remove the key, or use a newer vLLM."),
        ("spec_target", r"(?:dflash|eagle3|extract_hidden_states) is only supported for \[|"
                        r"Model does not support EAGLE3 interface",
         "this vLLM cannot pass the target's hidden states to a drafter",
         "Use a newer vLLM, or the patch for this one."),
        ("spec_mask", r"For parallel drafting, the draft model config must have|"
                      r"Model config must specify .{0,40}(?:pard_token|mask_token_id)",
         "the drafter does not support parallel drafting",
         "Use the DFlash drafter that was trained for the target."),
        ("spec_window", r"DFlash does not yet support mixed sliding/full attention|"
                        r"DFlash drafters with mixed sliding/full attention require the V2 model runner",
         "this drafter mixes sliding and full attention, which this vLLM does not run",
         "Use vLLM 0.26 or newer with the V2 model runner."),
        ("spec_width", r"DFlash drafter expects (?P<wanted>\d+) concatenated aux hidden features "
                       r"but received (?P<got>\d+)|DFlash drafter expects \d+ concatenated aux hidden features",
         "target and drafter do not belong together: the drafter needs layers that the target does not have",
         "Use the drafter that was trained for this target."),
        ("architecture", r"does not recognize this architecture|"
                         r"Model architectures .* (?:are not supported|failed to be inspected)|"
                         r"No module named 'transformers\.models\.\w+'|AmbiguousGlobalPerLayerAttributeError",
         "the transformers package of this engine does not support the model",
         "Use the engine that the recipe pins."),
        ("kv_cache", r"To serve at least one request with the models?'s max seq len \((?P<tokens>\d+)\), "
                     r"\((?P<needed>[\d.]+) GiB .* KV cache memory \((?P<there>[\d.]+) GiB\)"
                     r".*estimated maximum model length is (?P<fits>\d+)",
         "one request of {tokens} tokens needs {needed} GiB of KV cache, and {there} GiB are left",
         "Lower --max-model-len to {fits}, which vLLM says fits, or give the server more memory."),
        ("kv_cache", r"To serve at least one request with the models?'s max seq len|"
                     r"No available memory for the cache blocks",
         "the memory left for the KV cache does not hold one request of this length",
         "Lower --max-model-len or give the server more memory."),
        ("memory_taken", r"(?:Free memory on device \S+|Available memory on node \d+) "
                         r"\((?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\) on startup is less than desired "
                         r"\w+ memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
         "{free} of {total} GiB are free, and the share of {share} asks for {wanted} GiB",
         "Stop the program that holds the memory, or lower --gpu-memory-utilization."),
        ("memory_taken", r"on startup is less than desired GPU memory utilization|"
                         r"^(?:\w+: )?Available memory on node \d+",
         "another program holds the memory",
         "Stop that program, or ask for less: --gpu-memory-utilization, or the size of the KV cache."),
        ("max_len", r"User-specified max_model_len \((?P<tokens>\d+)\) is greater than the derived max_model_len"
                    r"(?: \((?P<derived>[^)]*)\))?",
         "the model does not support {tokens} tokens",
         "Lower --max-model-len to what the model supports."),
        ("out_of_memory", r"OutOfMemoryError|CUDA out of memory|CUDA error: out of memory|"
                          r"CUBLAS_STATUS_ALLOC_FAILED",
         "the GPU ran out of memory",
         "Lower --gpu-memory-utilization, --max-num-batched-tokens, --max-num-seqs or --max-model-len."),
        ("gated", r"GatedRepoError|You are trying to access a gated repo|Cannot access gated repo|"
                  r"Access to model \S+ is restricted|401 Client Error",
         "the model is gated on the hub, and the server has no token that may read it",
         "Accept the model's terms on the hub and export HF_TOKEN."),
        ("hub_offline", r"outgoing traffic has been disabled|offline mode is enabled|OfflineModeIsEnabled",
         "the model is not in the cache, and HF_HUB_OFFLINE forbids downloading it",
         "Unset HF_HUB_OFFLINE, or download the model first; check its name."),
        ("hub_down", r"We couldn't connect to 'https?://|Cannot reach https?://|"
                     r"(?:MaxRetryError|NameResolutionError|ReadTimeout).*(?:huggingface|hf\.co)",
         "the hub could not be reached",
         "Check the network or HTTPS_PROXY, then launch again; partial downloads are kept."),
        ("not_found", r"HFValidationError: Repo id must .*: '(?P<name>[^']*)'|"
                      r"Invalid repository ID or local directory specified: '(?P<folder>[^']*)'",
         "{name}{folder} holds no model: it is neither a folder with a config.json nor the name of a hub repository",
         "Use a folder that holds a model, or the name of a hub repository."),
        ("not_found", r"RepositoryNotFoundError|is not a local folder and is not a valid model identifier|"
                      r"HFValidationError|Invalid repository ID or local directory specified|"
                      r"LocalEntryNotFoundError",
         "the model is neither a local folder nor in the cache, or it does not exist on the hub",
         "Check the name."),
        ("weights", r"SafetensorError: |Error while deserializing header|Cannot find any model weights with",
         "the files of the model are damaged or incomplete",
         "Delete the model from the cache, and launch again to download it."),
        ("port_in_use", r"\[Errno 98\] |no process of this server listens there",
         "another program uses the port", "Use another port."),
        ("disk_full", r"\[Errno 28\] |No space left on device",
         "a disk is full, or /dev/shm is", "Free some space; df -h shows which."),
        ("open_files", r"\[Errno 24\] ", "the server may not open as many files as it needs",
         "Raise the limit: ulimit -n 65536"),
        ("parallel", r"Total number of attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size "
                     r"\((?P<size>\d+)\)",
         "{heads} attention heads cannot be divided among {size} GPUs",
         "Choose a tensor-parallel-size that divides them."),
        ("wrong_build", r"no kernel image is available for execution on the device|"
                        r"the provided PTX was compiled with an unsupported toolchain|"
                        r"libcudart\.so\.\d+: cannot open shared object file",
         "this engine was built for another GPU or another CUDA",
         "Reinstall it, or use the engine that the recipe pins."),
        ("missing_module", r"^ModuleNotFoundError: No module named '(?P<module>[^']*)'",
         "a chosen feature needs the package {module}, which this engine does not have",
         "Choose another backend, or use the engine that the recipe pins."),
        ("driver_old", r"The NVIDIA driver on your system is too old|"
                       r"CUDA driver version is insufficient for CUDA runtime version",
         "the NVIDIA driver is older than the CUDA of this engine",
         "CUDA 13 wheels need driver 580 or newer."),
        ("kernel", r"cutlass_gemm_caller|This kernel only supports sm120|Failed to find a kernel that can "
                   r"implement the (?:ScaledMM|WNA16|NVFP4|MXFP\d) linear layer",
         "the quantisation kernel does not run on this GPU",
         "Switch the kernel off (VLLM_DISABLED_KERNELS) or apply the recipe's patch."),
        ("quantisation", r"(?:The quantization method .+|Quantization scheme) is not supported for the current GPU",
         "this GPU does not support the quantisation", "Choose a quantisation that this GPU supports."),
        ("device_fault", r"device-side assert triggered|illegal memory access|unspecified launch failure",
         "a GPU kernel accessed memory illegally: a bug in vLLM or in a backend",
         "Try another attention backend for the drafter, eager mode, or fewer drafted tokens."),
        ("timeout", r"RPC call to \w+ timed out|RayChannelTimeoutError",
         "a worker did not answer in time", "Raise VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS."),
        ("worker_died", r"Worker proc \S+ died unexpectedly \(exit code: (?P<code>-?[1-9]\d*)\)",
         "a worker process crashed (exit code {code}; -9 means that it was killed)",
         "See dmesg: the kernel kills processes when it runs out of memory. Launch again."),
        # vLLM asks for the code of a process that may not be reaped yet; 0 is the code of a failed start.
        ("worker_died", r"Worker proc \S+ died unexpectedly \(exit code: None\)",
         "a worker process crashed, and vLLM does not know how; often it was killed",
         "See dmesg: the kernel kills processes when it runs out of memory. Launch again."),
        ("cancelled", r"^RuntimeError: cancelled$|^(?:\w+\.)*(?:CancelledError|KeyboardInterrupt|SystemExit)\b",
         "", ""),
        ("validation", r"^pydantic_core\.\S+ValidationError: ", "", ""),
        ("engine_dead", r"EngineDeadError|EngineCore encountered (?:an issue|a fatal error)|"
                        r"^Engine core proc \S+ died unexpectedly", "", ""),
        ("init_failed", r"Engine core initialization failed\. See root cause above", "", ""),
        ("app_failed", r"Application startup failed\. Exiting\.", "", ""),
    )
)  # fmt: skip


class FailureMatch(NamedTuple):
    """A known failure found in a log text: its name, cause and fix, with the values that the text states.

    `quote` is the text, cut after the part that identifies the failure.
    """

    kind: str
    cause: str
    fix: str
    log_values: dict[str, str]
    quote: str


def recognize_failure(text: str) -> str:
    """Return the kind of the known failure that `text` shows, or an empty string."""
    return next((failure.kind for failure in KNOWN_FAILURES if failure.pattern.search(text)), "")


def explain_failure(text: str) -> FailureMatch | None:
    """Return the known failure that `text` shows, with its values filled in; None for an unknown one."""
    for failure in KNOWN_FAILURES:
        if match := failure.pattern.search(text):
            log_values = {name: value for name, value in match.groupdict().items() if value is not None}
            values = dict.fromkeys(failure.pattern.groupindex, "") | log_values
            quote = text if len(text) <= _MAX_QUOTE else f"{text[: match.end()]}…"
            return FailureMatch(
                failure.kind, failure.cause.format_map(values), failure.fix.format_map(values), log_values, quote
            )
    return None


def find_root_cause(problems: Iterable[Problem]) -> Problem | None:
    """Return the problem that explains a failed start: the first that is not a mere symptom, or None."""
    return next((problem for problem in problems if problem.kind not in SYMPTOMS), None)
