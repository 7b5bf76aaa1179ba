"""The start-up lines of vLLM as its sources write them: where each format is, and what a line of it must mean."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from dflash_tui.events import Phase
from tests.support.source_trees import parse_source

BACKENDS, MONITOR, DECORATORS = "compilation/backends.py", "compilation/monitor.py", "compilation/decorators.py"
RUNNER, RUNNER_2 = "v1/worker/gpu_model_runner.py", "v1/worker/gpu/model_runner.py"
WORKER, CORE, KV = "v1/worker/gpu_worker.py", "v1/engine/core.py", "v1/core/kv_cache_utils.py"
CPU, CPU_2, CPU_WORKER = "v1/worker/cpu_model_runner.py", "v1/worker/cpu/model_runner.py", "v1/worker/cpu_worker.py"
LOADER, WEIGHTS = "model_executor/model_loader/default_loader.py", "model_executor/model_loader/weight_utils.py"
WARMUP = "model_executor/warmup/kernel_warmup.py"
STARTUP = ("entrypoints/utils.py", "entrypoints/serve/utils/api_utils.py", "entrypoints/common/startup.py")
JIT = ("utils/jit_monitor.py", "triton_utils/jit_monitor.py")
CUDA, CONFIG = "platforms/cuda.py", "config/vllm.py"
SPECULATOR = "v1/worker/gpu/spec_decode/dflash/speculator.py"
EAGLE = "v1/worker/gpu/spec_decode/eagle/eagle3_utils.py"
MOE = "model_executor/layers/fused_moe/oracle/unquantized.py"
MOE_DIR, QUANT = "model_executor/layers/fused_moe/oracle/", "model_executor/layers/quantization/"
CT = f"{QUANT}compressed_tensors/"
CT_MXFP4 = f"{CT}compressed_tensors_moe/compressed_tensors_moe_w4a4_mxfp4.py"
CT_WNA16, FP4 = f"{CT}schemes/compressed_tensors_wNa16.py", f"{QUANT}utils/marlin_utils_fp4.py"
LINEAR = tuple(f"{QUANT}{name}.py" for name in ("gptq_marlin", "awq_marlin", "auto_gptq", "auto_awq"))
NO_FP4 = (
    "Your GPU does not have native support for FP4 computation but FP4 quantization is being used. Weight-only FP4 "
    "compression will be used leveraging the Marlin kernel. This may degrade performance for compute-heavy workloads."
)
GEMM = "model_executor/kernels/linear/__init__.py"
TAG = "[backbone] "

# A phase, (name, text) of a fact, (name, value) of a figure, or (part, step, seconds) of compiling.
Meaning = Phase | tuple[str, str] | tuple[str, float] | tuple[str, str, float | None]


class Format(NamedTuple):
    """A format: its beginning (a pattern), the files that may hold it, its words, its meaning and its releases.

    `words` replace `%s` and `{}` one after the other, numbers are 7 and 12.5; `after` is the phase before the line.
    """

    begins: str
    paths: tuple[str, ...]
    words: tuple[str, ...]
    means: Meaning
    since: str = "0.20.0"
    until: str = "0.99"
    after: Phase = Phase.IMPORT


P = Phase
FORMATS = (
    Format(r"vLLM server version %s, serving", STARTUP, ("0.33.0", "m"), P.RESOLVE),
    Format(r"non-default args: ", STARTUP, ("{}",), P.RESOLVE),
    Format(r"Resolved architecture: ", ("config/model.py",), ("ArchForCausalLM",), ("architecture", "ArchForCausalLM")),
    Format(r"Enforce eager set, disabling", (CONFIG,), (), P.ENGINE, after=P.RESOLVE),
    Format(r"Final IR op priority after", ("config/kernel.py",), ("x",), P.ENGINE, after=P.RESOLVE),
    Format(r"Asynchronous scheduling is %s", (CONFIG,), ("enabled",), P.ENGINE, until="0.26.0", after=P.RESOLVE),
    Format(r"Initializing a V1 LLM engine", (CORE,), ("0.33.0", "x"), P.ENGINE),
    Format(r"Using V2 Model Runner", (WORKER,), (), ("model runner", "V2")),
    Format(r"Model Runner V2 .* instead", (CONFIG,), ("x",), ("model runner", "V1"), since="0.23.0"),
    Format(r"Starting to load model", (RUNNER, CPU), ("m",), P.WEIGHTS),
    Format(r"Loading model from scratch", (RUNNER_2,), (), P.WEIGHTS),
    Format(r"Using %s attention backend out", (CUDA,), ("FLASH_ATTN", "[]"), ("attention", "FLASH_ATTN")),
    Format(r"Using %s backend\.", (CUDA,), ("AttentionBackendEnum.TRITON_ATTN",), ("attention", "TRITON_ATTN")),
    Format(r"Using FlashAttention version", ("v1/attention/backends/flash_attn.py",), ("3",), ("flash attention", "3")),
    Format(r"Filesystem type for checkpoints", (WEIGHTS,), ("EXT4",), ("checkpoint_size", 12.5)),
    Format(r"Time spent downloading weights", (WEIGHTS,), ("m",), ("weights_download", 12.5)),
    Format(r"Loading weights took", (LOADER,), (), ("weights_loading", 12.5)),
    Format(r"Loading drafter model", (RUNNER, CPU), (), P.DRAFTER, after=P.WEIGHTS),
    Format(r"Using Eagle3 auxiliary layers", (EAGLE,), ("x",), P.DRAFTER, after=P.WEIGHTS),
    Format(r"Model loading took", (RUNNER, RUNNER_2), ("48.41",), ("model_memory", 48.41)),
    Format(r"Model loading took", (RUNNER, RUNNER_2), ("48.41",), P.COMPILE, after=P.WEIGHTS),
    Format(r"(?:%s)?Using cache directory", (BACKENDS,), ("/c/rank_0_0/backbone",), P.COMPILE, after=P.WEIGHTS),
    Format(r"(?:%s)?Dynamo bytecode .* time", (BACKENDS,), (), ("", "dynamo", 12.5)),
    Format(r"(?:%s)?Compiling a graph for compile range", (BACKENDS,), ("x",), ("", "inductor", 12.5)),
    Format(r"(?:%s)?Directly load the compiled", (BACKENDS,), ("x",), ("", "loaded", 12.5)),
    Format(r"(?:%s)?Directly load AOT", (DECORATORS,), ("x",), ("", "loaded", None)),
    Format(r"(?:%s)?Compiling model again due", (DECORATORS,), ("x", "y"), ("", "again", None)),
    Format(r"(?:%s)?saved AOT compiled", (DECORATORS,), ("x",), ("", "saved", None)),
    Format(r"(?:%s)?torch\.compile took", (MONITOR,), (), ("", "total", 12.5)),
    Format(r"(?:%s)?torch\.compile took", (MONITOR,), (), P.PROFILE, after=P.COMPILE),
    Format(r"(?:%s)?Initial profiling/warmup run", (MONITOR,), (), P.PROFILE, after=P.COMPILE),
    Format(r"Estimated CUDA graph memory", (RUNNER,), (), ("graph_estimate", 12.5)),
    Format(r"Profiling CUDA graph memory", (RUNNER,), ("x",), P.PROFILE, after=P.COMPILE),
    Format(r"Available KV cache memory", (WORKER,), ("53.72",), ("kv_cache_memory", 53.72)),
    Format(r"Available KV cache memory", (WORKER,), ("53.72",), P.KV_CACHE, after=P.PROFILE),
    Format(r"GPU KV cache size", (KV,), ("123,456", "8"), ("kv_cache_size", 123456.0), until="0.29.0"),
    Format(r"%s KV cache size", (KV,), ("CPU", "123,456", "8"), ("kv_cache_size", 123456.0), since="0.30.0"),
    Format(r".*Maximum concurrency for", (KV,), ("9", "16,384", "16,384"), ("kv_concurrency", 12.5), until="0.29.0"),
    Format(r".*Maximum concurrency for", (KV,), ("GPU", "9", "16,384"), ("kv_request", 16384.0), since="0.30.0"),
    Format(r"Explicitly set \({}", (CPU_WORKER,), ("1.0", "18.9", "0"), ("kv_cache_memory", 1.0)),
    Format(r"Using FlashInfer autotune cache", (WARMUP,), ("x",), P.AUTOTUNE, since="0.22.1", after=P.KV_CACHE),
    Format(r"Running FlashInfer .*autotune", (WARMUP,), ("x",), P.AUTOTUNE, since="0.29.0", after=P.KV_CACHE),
    Format(r"Rank %d: Torch profiler disabled", (RUNNER,), (), P.GRAPHS, since="0.26.0", after=P.KV_CACHE),
    Format(r"Capturing CUDA graphs \({}", (RUNNER,), ("decode", "FULL"), P.GRAPHS, after=P.KV_CACHE),
    Format(r"Capturing model for", (SPECULATOR,), ("x",), P.GRAPHS, "0.24.0", after=P.KV_CACHE),
    Format(r"Graph capturing finished", (RUNNER, RUNNER_2), (), ("graph_memory", 12.5)),
    Format(r"Graph capturing finished", (RUNNER, RUNNER_2), (), P.JIT, after=P.GRAPHS),
    Format(r"Free memory on device", (WORKER,), (), P.JIT, after=P.KV_CACHE),
    Format(r"JIT kernel warmup starting", (WARMUP,), (), P.JIT, since="0.29.0", after=P.KV_CACHE),
    Format(r"JIT kernel warmup finished", (WARMUP,), (), P.UNATTRIBUTED, since="0.29.0", after=P.JIT),
    Format(r"Kernel JIT monitor activated", JIT, (), P.UNATTRIBUTED, since="0.24.0", after=P.JIT),
    Format(r"init engine \(", (CORE,), (), P.API, after=P.KV_CACHE),
    Format(r"Warming up model for the comp", (CPU,), (), P.COMPILE, after=P.WEIGHTS),
    Format(r"Warming up done", (CPU,), (), P.UNATTRIBUTED, after=P.COMPILE),
    Format(r"Using .* MoE backend out", (MOE,), ("TRITON", "[]"), ("moe", "TRITON Unquantized")),
    Format(r"Using '{}' NvFp4 MoE backend out", (MOE_DIR + "nvfp4.py",), ("FLASHINFER_CUTLASS", "[]"),
           ("moe", "FLASHINFER_CUTLASS NvFp4")),
    Format(r"Using '{}' Mxfp4 MoE backend", (MOE_DIR + "mxfp4.py",), ("MARLIN",), ("moe", "MARLIN Mxfp4")),
    Format(r"Using '%s' MxFp8 MoE backend", (MOE_DIR + "mxfp8.py",), ("MARLIN",), ("moe", "MARLIN MxFp8")),
    Format(r"Using '{}' WNA16 MoE backend", (MOE_DIR + "int_wna16.py",), ("MARLIN",), ("moe", "MARLIN WNA16")),
    Format(r"Using {} Fp8 MoE backend out", (MOE_DIR + "fp8.py",), ("TRITON", "[]"), ("moe", "TRITON Fp8")),
    Format(r"Using MarlinExperts .*MXFP4 MoE", (CT_MXFP4,), (), ("moe", "MarlinExperts")),
    Format(r"Using %s for \w+LinearMethod", LINEAR, ("MarlinLinearKernel",), ("gemm", "MarlinLinearKernel")),
    Format(r"Using %s for CompressedTensorsWNA16", (CT_WNA16,), ("MarlinLinearKernel",),
           ("gemm", "MarlinLinearKernel")),
    Format(r"Your GPU does not have native support for FP4", (FP4,), (), ("without FP4", NO_FP4)),
    Format(r"Using %s for \w+ GEMM", (GEMM,), ("CutlassKernel",), ("gemm", "CutlassKernel")),
    Format(r"Selected %s for %s", (GEMM,), ("CutlassKernel", "Method"), ("gemm", "CutlassKernel")),
    Format(r"Using FlashInfer for top-p", ("v1/sample/ops/topk_topp_sampler.py",), (), ("sampler", "FlashInfer")),
    Format(r"Cudagraph mode %s is not compatible with comp", (CONFIG,), ("FULL", "NONE"), ("without graphs",
           "Cudagraph mode FULL is not compatible with compilation mode NONE.Overriding to NONE."), until="0.29.99"),
    Format(r"Cudagraph mode %s is not compatible with comp", (CONFIG,), ("FULL", "NONE", "NONE"), ("without graphs",
           "Cudagraph mode FULL is not compatible with compilation mode NONE. Overriding to NONE."), since="0.30.0"),
    Format(r"%s draft attention \(%s\) does not support", (SPECULATOR,), ("A",), ("without graphs",
           "[backbone]  draft attention (A) does not support full CUDA graphs; running the draft eagerly."),
           since="0.26.0"),
)  # fmt: skip
PATHS = tuple(sorted({path for form in FORMATS for path in form.paths}))


def strings(source: str) -> Iterator[str]:
    """Yield every string of a Python source; what an f-string puts in is `{}`."""
    for node in ast.walk(parse_source(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)


def render(text: str, words: tuple[str, ...]) -> str:
    """Return a line of the format; a `%s` at the beginning of a step of compiling is the tag of the part."""
    left = iter(words)
    if text.startswith("%s") and not text.startswith("%s KV"):
        text = text.replace("%s", TAG, 1)

    def value(match: re.Match[str]) -> str:
        spec = match[0]
        return next(left, "12.5") if spec in {"%s", "{}"} else spec.replace("%%", "%") % (7 if "d" in spec else 12.5)

    return re.sub(r"%[-+0-9.]*[sdf]|\{\}", value, text).replace("%%", "%")
