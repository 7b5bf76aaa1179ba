"""Patterns of vLLM's log lines: phases, figures, notes and progress bars. Pure; 0.20 to 0.33.

All are matched at the beginning of a line's text, and their groups are the values. Parts that several patterns share
have a name.
"""

from __future__ import annotations

from typing import NamedTuple

from dflash_tui.events import Phase

# The part of the model that a line of torch.compile is about, from 0.32 on.
TAG = r"(?:\[(?P<part>[\w./:-]+)\] )?"
SHARDS = r"(?:Multi-thread loading|Loading) (?P<what>)[^:]{3,80}?: +\d+% Completed"
CHECKPOINT = r"Filesystem type for checkpoints: "
LOADED = r"Loading weights took "
MODEL_LOADED = r"Model loading took "
COMPILING_ALL = r"Warming up model for the compilation"
COMPILED_ALL = r"Warming up done\."
ENGINE = r"Initializing a V1 LLM engine \(v"
NOT_COMPILED = r"Enforce eager set, disabling torch\.compile"
_DYNAMO = r"Dynamo bytecode transform time: "
_GRAPH = r"Compiling a graph for compile range "
_RECOMPILED = r"Compiling model again due to a load failure"
_LOADED_GRAPH = r"Directly load the compiled graph"
_LOADED_AOT = r"Directly load AOT compilation"
_CACHE = r"Using cache directory: "
_COMPILED = r"torch\.compile took "
_CAPTURING = r"Capturing (?:model for .*speculator\.\.\.|CUDA graphs \()"
_BAR_OF_GRAPHS = r"Capturing CUDA graphs \("
_CAPTURED = r"Graph capturing finished in "
_AUX = r"Using Eagle3 auxiliary layers from "


class PhaseMark(NamedTuple):
    """A log line that begins a phase, and the phases in which it does so (empty: any)."""

    to: Phase
    pattern: str
    only_from: frozenset[Phase] = frozenset()


def _set_of_phases(*phases: Phase) -> frozenset[Phase]:
    return frozenset(phases)


# The engine process imports everything again before its first line; it starts with the last lines of resolving.
_RESOLVED = (
    rf"{NOT_COMPILED}|Asynchronous scheduling is |Final IR op priority after setting|"
    r"Cudagraph is disabled under eager mode|max_num_scheduled_tokens is set to "
)
# Ranks of one machine meet on its loopback, and are started at once.
_WAITING = r"world_size=(?!1\b)\d+ rank=\d+ local_rank=\d+ distributed_init_method=tcp://(?!127\.|localhost)"
_COMPILING = (
    rf"{COMPILING_ALL}|Compile and warming up model for size |"
    rf"{TAG}(?:Starting torch\.compile|{_CACHE}.+ for vLLM's torch|{_DYNAMO}|"
    rf"Cache the graph of compile range |{_GRAPH}|{_RECOMPILED}|{_LOADED_GRAPH}|{_LOADED_AOT})"
)
_AUTOTUNING = (
    r"Using FlashInfer (?:managed )?autotune cache|Running FlashInfer (?:BF16-only )?autotune with |"
    r"Autotuning FlashInfer |\[AutoTuner\]: Tuning |[\d: ,-]+- INFO - .*\[Autotuner\]: Autotuning process starts"
)
_AUTOTUNED = (
    r"Skipping FlashInfer autotune because|No FlashInfer autotune cache entries found|"
    r"[\d: ,-]+- INFO - .*\[Autotuner\]: Autotuning process ends"
)
_WARMING = (
    r"JIT kernel warmup starting\.|Warming up (?!model for|done)|CUDA graph pool memory: |"
    rf"{_CAPTURED}|Free memory on device \("
)
INITIALIZED = (
    r"init engine \(profile, create kv cache, warmup model\) took (?P<s>[\d.]+) s"
    r"(?:econds)?(?: \(compilation: (?P<compilation>[\d.]+) s)?"
)
SPECULATION = (
    r"SpecDecoding metrics: Mean acceptance length: (?P<length>[\d.]+|nan), "
    r"Accepted throughput: [\d.na]+ tokens/s, Drafted throughput: [\d.na]+ tokens/s, "
    r"Accepted: (?P<accepted>\d+) tokens, Drafted: (?P<drafted>\d+) tokens, "
    r"Per-position acceptance rate: (?P<positions>[\d., na]*), Avg Draft acceptance rate: "
)
_WARM = r"JIT kernel warmup finished in |Kernel JIT monitor activated|CuTeDSL warmup compiled "

MARKS: tuple[PhaseMark, ...] = (
    PhaseMark(Phase.RESOLVE, r"vLLM (?:API )?server version \S+|[^\w█]*█.*\bversion \d\S*$|non-default args: "),
    PhaseMark(Phase.RESOLVE, r"Resolved architecture: \S"),
    PhaseMark(Phase.ENGINE, _RESOLVED, _set_of_phases(Phase.RESOLVE)),
    PhaseMark(Phase.ENGINE, ENGINE),
    PhaseMark(Phase.RANKS, _WAITING, _set_of_phases(Phase.ENGINE)),
    PhaseMark(Phase.ENGINE, r"rank \d+ in world size \d+ is assigned as ", _set_of_phases(Phase.RANKS)),
    PhaseMark(Phase.WEIGHTS, r"Starting to load model .+\.\.\.$|Loading model from scratch\.\.\.$"),
    PhaseMark(Phase.DRAFTER, rf"Loading drafter model\.\.\.$|{_AUX}", _set_of_phases(Phase.WEIGHTS)),
    PhaseMark(Phase.PROFILE, rf"{MODEL_LOADED}[\d.]+ GiB"),
    PhaseMark(Phase.COMPILE, _COMPILING),
    PhaseMark(Phase.UNATTRIBUTED, rf"{COMPILED_ALL}$", _set_of_phases(Phase.COMPILE, Phase.PROFILE, Phase.JIT)),
    PhaseMark(
        Phase.PROFILE, rf"{TAG}(?:{_COMPILED}|Initial profiling/warmup run took )", _set_of_phases(Phase.COMPILE)
    ),
    PhaseMark(Phase.PROFILE, r"Profiling CUDA graph memory: |Estimated CUDA graph memory: "),
    PhaseMark(
        Phase.KV_CACHE, r"Available KV cache memory: |[A-Z]+ KV cache size: |(?:Explicitly|Auto) set \(.* for KV cache"
    ),
    PhaseMark(Phase.AUTOTUNE, _AUTOTUNING),
    PhaseMark(Phase.UNATTRIBUTED, _AUTOTUNED, _set_of_phases(Phase.AUTOTUNE)),
    PhaseMark(Phase.GRAPHS, rf"Rank \d+: Torch profiler disabled for CUDA graph capture|{_CAPTURING}"),
    PhaseMark(Phase.JIT, _WARMING),
    PhaseMark(Phase.UNATTRIBUTED, _WARM, _set_of_phases(Phase.JIT)),
    PhaseMark(Phase.API, r"init engine \(profile, create kv cache, warmup model\) took "),
    PhaseMark(Phase.UP, r"Application startup complete\.$"),
)

# Name, unit and pattern of each figure; the groups of a pattern are the figures, in the order of the names.
FIGURES: tuple[tuple[str, str, str], ...] = (
    ("checkpoint_size", "GiB", rf"{CHECKPOINT}.*Checkpoint size: ([\d.]+) GiB"),
    ("weights_download", "s", r"Time spent downloading weights for .+: ([\d.]+) seconds"),
    ("weights_loading", "s", rf"{LOADED}([\d.]+) seconds"),
    ("model_memory", "GiB", rf"{MODEL_LOADED}([\d.]+) GiB"),
    ("model_loading", "s", rf"{MODEL_LOADED}[\d.]+ GiB(?: memory)? and ([\d.]+) seconds"),
    ("dynamo", "s", rf"{TAG}{_DYNAMO}(?P<value>[\d.]+) s"),
    ("torch_compile", "s", rf"{TAG}{_COMPILED}(?P<value>[\d.]+) s in total"),
    ("graph_estimate", "GiB", r"Estimated CUDA graph memory: (-?[\d.]+) GiB total"),
    (
        "kv_cache_memory",
        "GiB",
        r"Available KV cache memory: (-?[\d.]+) GiB|(?:Explicitly|Auto) set \(([\d.]+)/.* for KV cache",
    ),
    ("kv_cache_size", "tokens", r"[A-Z]+ KV cache size: ([\d,]+) tokens"),
    ("kv_request", "tokens", r"(?:.*, )?Maximum concurrency for ([\d,]+) tokens per request: "),
    ("kv_concurrency", "x", r"(?:.*, )?Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
    ("graph_capture", "s", rf"{_CAPTURED}(\d+) secs"),
    ("graph_memory", "GiB", rf"{_CAPTURED}\d+ secs, took (-?[\d.]+) GiB"),
)

NOTES: tuple[tuple[str, str], ...] = (
    ("attention", r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention backend out of |backend\b)"),
    ("flash attention", r"Using FlashAttention version (\d)"),
    ("moe", r"Using ['‘]?([\w .+-]+?)['’]?((?: [\w+-]+)*?) MoE backend"),
    ("moe", r"Using (\w+) backend for WNA16 MoE"),
    ("moe", r"Using (\w+)(?: \(weight-only FP4\))? for (?:AutoRound )?MXFP4 MoE"),
    ("gemm", r"Using (\w+) for (?:\w+ GEMM|\w+LinearMethod|CompressedTensors\w+|mixed-precision linear)$"),
    ("gemm", r"Selected (\w+) for \w+"),
    ("sampler", r"Using (FlashInfer) for top-p & top-k sampling"),
    ("architecture", r"Resolved architecture: (\S+)"),
    ("vllm", rf"{ENGINE}([^)]+)\)"),
    ("marlin asked for", r"non-default args: .*'(?:moe|linear)_backend': '(marlin)'"),
    ("without FP4", r"(Your GPU does not have native support for FP4 computation.*)"),
    ("without graphs", r"(.*(?:Overriding to NONE|setting cudagraph_mode=NONE|running the draft eagerly).*)"),
    ("synthetic", r"non-default args: .*'(synthetic)_acceptance_\w+': "),
    ("kv padding", r"(Add \d+ padding layers, may waste at most [\d.]+% KV cache memory)"),
    ("aux layers", rf"(?:Using auxiliary layers from speculative config|{_AUX}\w+): (.+)"),
)
RUNNERS: tuple[tuple[str, str], ...] = (
    ("V2", r"Using V2 Model Runner"),
    ("V1", r".*; using the V1 model runner instead\.|Defaulting to V1 model runner|Starting to load model .+\.\.\.$"),
)
STEPS: tuple[tuple[str, str], ...] = (
    ("dynamo", rf"{TAG}{_DYNAMO}(?P<s>[\d.]+) s"),
    ("inductor", rf"{TAG}{_GRAPH}.+ takes (?P<s>[\d.]+) s"),
    (
        "loaded",
        rf"{TAG}{_LOADED_GRAPH}\(s\) for compile range .+ from the cache, took (?P<s>[\d.]+) s",
    ),
    ("loaded", rf"{TAG}{_LOADED_AOT} from path (?P<s>)"),
    ("again", rf"{TAG}{_RECOMPILED} from (?P<s>)"),
    ("saved", rf"{TAG}saved AOT compiled function to (?P<s>)"),
    ("total", rf"{TAG}{_COMPILED}(?P<s>[\d.]+) s in total"),
)
BARS: tuple[tuple[Phase, str], ...] = (
    (
        Phase.WEIGHTS,
        rf"{SHARDS} \| (?P<n>\d+)/(?P<of>\d+)",
    ),
    (Phase.GRAPHS, rf"{_BAR_OF_GRAPHS}(?P<what>[^)]*)\): +\d+%\|.*?\| *(?P<n>\d+)/(?P<of>\d+)"),
)
CACHE_FOLDER = rf"{TAG}{_CACHE}(?P<path>\S+) for vLLM's torch\.compile"
