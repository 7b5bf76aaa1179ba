"""Parse the lines of vLLM's startup log: phases, figures, backends, steps of torch.compile. Pure; vLLM 0.20 to 0.33."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import NamedTuple

from dflash_tui.common.sanitizer import LINE_LIMIT, clean_line
from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.events import (
    AnyEvent,
    Compiled,
    EngineInitialized,
    LoadLogged,
    Noted,
    Phase,
    Progressed,
    SpeculationLogged,
    Stated,
)

# The part of the model in a line of torch.compile, logged from 0.32 on.
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
    """A pattern of log lines that begin the phase `to`; `only_from` limits it to these current phases (empty: any)."""

    to: Phase
    pattern: str
    only_from: frozenset[Phase] = frozenset()


# The engine process imports everything again before its first line, so `engine` starts with the end of resolving.
_RESOLVED = (
    rf"{NOT_COMPILED}|Asynchronous scheduling is |Final IR op priority after setting|"
    r"Cudagraph is disabled under eager mode|max_num_scheduled_tokens is set to "
)
# Ranks of one machine use its loopback and start at once, so only other addresses are waited for.
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
    r"Accepted: (?P<accepted>\d{1,18}) tokens, Drafted: (?P<drafted>\d{1,18}) tokens, "
    r"Per-position acceptance rate: (?P<positions>[\d., na]*), Avg Draft acceptance rate: "
)
LOAD = (
    r".*Avg prompt throughput: .*\bRunning: (?P<running>\d{1,9}) reqs, Waiting: (?P<waiting>\d{1,9}) reqs"
    r"(?:.*?KV cache usage: (?P<usage>[\d.]+)%)?"
)
# Lines that are logged while serving.
SLOW_SAMPLER = r"FlashInfer top-p/top-k sampling unavailable: .*|FlashInfer .*Falling back to PyTorch-native.*"
KERNEL_COMPILED = "kernel JIT compilation during inference: "
_WARM = r"JIT kernel warmup finished in |Kernel JIT monitor activated|CuTeDSL warmup compiled "

MARKS: tuple[PhaseMark, ...] = (
    PhaseMark(Phase.RESOLVE, r"vLLM (?:API )?server version \S+|[^\w█]*█.*\bversion \d\S*$|non-default args: "),
    PhaseMark(Phase.RESOLVE, r"Resolved architecture: \S"),
    PhaseMark(Phase.ENGINE, _RESOLVED, frozenset({Phase.RESOLVE})),
    PhaseMark(Phase.ENGINE, ENGINE),
    PhaseMark(Phase.RANKS, _WAITING, frozenset({Phase.ENGINE})),
    PhaseMark(Phase.ENGINE, r"rank \d+ in world size \d+ is assigned as ", frozenset({Phase.RANKS})),
    PhaseMark(Phase.WEIGHTS, r"Starting to load model .+\.\.\.$|Loading model from scratch\.\.\.$"),
    PhaseMark(Phase.DRAFTER, rf"Loading drafter model\.\.\.$|{_AUX}", frozenset({Phase.WEIGHTS})),
    PhaseMark(Phase.PROFILE, rf"{MODEL_LOADED}[\d.]+ GiB"),
    PhaseMark(Phase.COMPILE, _COMPILING),
    PhaseMark(Phase.UNATTRIBUTED, rf"{COMPILED_ALL}$", frozenset({Phase.COMPILE, Phase.PROFILE, Phase.JIT})),
    PhaseMark(Phase.PROFILE, rf"{TAG}(?:{_COMPILED}|Initial profiling/warmup run took )", frozenset({Phase.COMPILE})),
    PhaseMark(Phase.PROFILE, r"Profiling CUDA graph memory: |Estimated CUDA graph memory: "),
    PhaseMark(
        Phase.KV_CACHE, r"Available KV cache memory: |[A-Z]+ KV cache size: |(?:Explicitly|Auto) set \(.* for KV cache"
    ),
    PhaseMark(Phase.AUTOTUNE, _AUTOTUNING),
    PhaseMark(Phase.UNATTRIBUTED, _AUTOTUNED, frozenset({Phase.AUTOTUNE})),
    PhaseMark(Phase.GRAPHS, rf"Rank \d+: Torch profiler disabled for CUDA graph capture|{_CAPTURING}"),
    PhaseMark(Phase.JIT, _WARMING),
    PhaseMark(Phase.UNATTRIBUTED, _WARM, frozenset({Phase.JIT})),
    PhaseMark(Phase.API, r"init engine \(profile, create kv cache, warmup model\) took "),
    PhaseMark(Phase.UP, r"Application startup complete\.$"),
)

# Name, unit and pattern of each figure; the value is the group `value`, or else the first group that matched.
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
    ("in pieces", r"(.*; setting cudagraph_mode=PIECEWISE\b.*)"),
    ("prefix cache", r"Initializing a V1 LLM engine .*\benable_prefix_caching=(False)"),
    ("max-num-seqs", r"non-default args: .*'max_num_seqs': (\d+)"),
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
    ("loaded", rf"{TAG}{_LOADED_GRAPH}\(s\) for compile range .+ from the cache, took (?P<s>[\d.]+) s"),
    ("loaded", rf"{TAG}{_LOADED_AOT} from path (?P<s>)"),
    ("again", rf"{TAG}{_RECOMPILED} from (?P<s>)"),
    ("saved", rf"{TAG}saved AOT compiled function to (?P<s>)"),
    ("total", rf"{TAG}{_COMPILED}(?P<s>[\d.]+) s in total"),
)
BARS: tuple[tuple[Phase, str], ...] = (
    (Phase.WEIGHTS, rf"{SHARDS} \| (?P<n>\d{{1,18}})/(?P<of>\d{{1,18}})"),
    (Phase.GRAPHS, rf"{_BAR_OF_GRAPHS}(?P<what>[^)]*)\): +\d+%\|.*?\| *(?P<n>\d{{1,18}})/(?P<of>\d{{1,18}})"),
)
CACHE_FOLDER = rf"{TAG}{_CACHE}(?P<path>\S+) for vLLM's torch\.compile"


# The name of the fact, and NCCL's name of plain sockets.
NCCL_NETWORK, SOCKETS = "NCCL network", "Socket"
_SIGN = "NCCL INFO "
_INFORMS = re.compile(r"^\S+:\d+:\d+ \[-?\d+\] NCCL INFO (?!.*(?:ERROR|Error: ))")
_CHANNEL = r"Channel \S+ : \S+ -> \S+ (?:\[\w+\] )?via "
_SAID = re.compile(
    r"NCCL INFO (?:Using network (?P<chosen>[\w. -]{1,40})$"
    rf"|{_CHANNEL}(?:NET/(?P<crossing>[\w. -]{{1,40}})/\d|(?P<within>P2P|SHM)/))"
)
_AS_USERS_CALL_IT = {"IB": "RoCE", SOCKETS: "sockets", "P2P": "GPU to GPU", "SHM": "shared memory"}
# By priority: traffic between hosts, traffic within a host, the network NCCL chose.
_TELLING = ("crossing", "within", "chosen")


class NetworkReader:
    """Reads from the lines of one log which network NCCL uses."""

    def __init__(self) -> None:
        self._lines = LineBuffer(LINE_LIMIT)
        self._networks = dict.fromkeys(_TELLING, "")

    def feed(self, data: bytes) -> None:
        """Read the next bytes of the log, which need not end at a line."""
        for line in self._lines.feed(data):
            if _SIGN.encode() in line:
                self.read_line(clean_line(line.decode(errors="replace")))

    def read_line(self, line: str) -> None:
        """Read one line of the log."""
        match = _SAID.search(line) if _SIGN in line else None
        if match and match.lastgroup:
            self._networks[match.lastgroup] = match[match.lastgroup].strip()

    @property
    def network(self) -> str:
        """NCCL's name of the network, such as `IB`, `Socket` or, within a host, `P2P`; empty until logged."""
        return next(filter(None, self._networks.values()), "")


def is_information(line: str) -> bool:
    """Whether a line is NCCL's at level INFO and reports no error."""
    return _SIGN in line and _INFORMS.match(line) is not None


def describe_network(network: str) -> str:
    """Return the common name of a network for NCCL's name; empty for none."""
    return _AS_USERS_CALL_IT.get(network, network)


def is_within_host(network: str) -> bool:
    """Whether NCCL's name means a path between GPUs of one host, not a network."""
    return network in {"P2P", "SHM"}


_PATTERNS = tuple((mark, re.compile(mark.pattern)) for mark in MARKS)
_SECOND_MODEL = re.compile(rf"{CHECKPOINT}|{SHARDS}")
_MODEL_LOADED = re.compile(MODEL_LOADED)
_COMPILING_ALL, _COMPILED_ALL = re.compile(COMPILING_ALL), re.compile(COMPILED_ALL)
_LOADED = re.compile(LOADED)
_UNCOMPILED = re.compile(rf"{NOT_COMPILED}|Initializing a V1 LLM .*\b(?:enforce_eager=True|CompilationMode\.NONE)")
_HAS_DRAFTER = re.compile(r"Initializing a V1 LLM .*\bspeculative_config=SpeculativeConfig\(.*?\bmodel='[^']")

# A start never returns to an earlier stage; within the fifth, phases alternate.
_STAGE = {
    Phase.IMPORT: 0,
    Phase.RESOLVE: 1,
    Phase.ENGINE: 2,
    Phase.RANKS: 2,
    Phase.WEIGHTS: 3,
    Phase.DRAFTER: 4,
    Phase.API: 6,
}
_WORKING_STAGE = 5
_UP_STAGE = 7


class PhaseReader:
    """Follows one start through the lines of its log and reports each change of phase."""

    def __init__(self) -> None:
        self.phase = Phase.IMPORT
        self._stage = 0
        self._uncompiled = self._drafts = self._loaded = self._all_in_one = False

    @property
    def up(self) -> bool:
        """Whether the log said that the server is up, after which no phase follows."""
        return self._stage == _UP_STAGE

    def read_line(self, body: str) -> Phase | None:
        """Return the phase that a line begins, or None if the phase stays the same."""
        phase = self._match_phase(body)
        if phase is None or phase is self.phase:
            return None
        stage = _UP_STAGE if phase is Phase.UP else _STAGE.get(phase, _WORKING_STAGE)
        stage = self._stage if phase is Phase.UNATTRIBUTED else stage
        if stage < self._stage:
            return None
        self.phase, self._stage = phase, stage
        return phase

    def _match_phase(self, body: str) -> Phase | None:
        if _UNCOMPILED.match(body):
            self._uncompiled = True
        elif _HAS_DRAFTER.match(body):
            self._drafts = True
        elif _LOADED.match(body):
            self._loaded = True
        elif self._loaded and self._drafts and self.phase is Phase.WEIGHTS and _SECOND_MODEL.match(body):
            return Phase.DRAFTER  # the V2 model runner does not log that it loads the drafter
        for mark, pattern in _PATTERNS:
            if (not mark.only_from or self.phase in mark.only_from) and pattern.match(body):
                return self._resolve_mark(mark.to, body)
        return None

    def _resolve_mark(self, phase: Phase, body: str) -> Phase | None:
        """Return the phase that a mark begins in this start, or None for no change."""
        if _MODEL_LOADED.match(body):
            # A profile run follows; its first pass compiles, unless compiling is off.
            return Phase.PROFILE if self._uncompiled else Phase.COMPILE
        if phase is Phase.COMPILE and self._uncompiled:
            # Also logged without compiling: for one pass, before the free memory is measured or after.
            return Phase.JIT if self.phase is Phase.KV_CACHE else Phase.PROFILE
        if _COMPILING_ALL.match(body):
            self._all_in_one = True
        elif _COMPILED_ALL.match(body):
            self._all_in_one = False
        elif phase is Phase.PROFILE and self._all_in_one and self.phase is Phase.COMPILE:
            return None  # on a CPU one warm-up compiles all parts in turn
        return phase


# Figures logged once for the target and once for the drafter, in this order.
_PER_MODEL_FIGURES = frozenset({"checkpoint_size", "weights_download", "weights_loading"})

_FIGURES = tuple((name, unit, re.compile(pattern)) for name, unit, pattern in FIGURES)
_NOTES = tuple((name, re.compile(pattern)) for name, pattern in NOTES)
_RUNNERS = tuple((name, re.compile(pattern)) for name, pattern in RUNNERS)
_STEPS = tuple((name, re.compile(pattern)) for name, pattern in STEPS)
_BARS = tuple((phase, re.compile(pattern)) for phase, pattern in BARS)
_INITIALIZED, _SPECULATION, _LOAD = re.compile(INITIALIZED), re.compile(SPECULATION), re.compile(LOAD)
_NUMBER = re.compile(r"\d+(?:\.\d*)?")
_ELAPSED = re.compile(r" \[(?:(\d{1,6}):)?(\d{1,6}):(\d{1,6})[<,]")
_CACHE_FOLDER = re.compile(CACHE_FOLDER)
_DRAFTER_PREFIX = "drafter "


class FactReader:
    """Reads the facts of one start; the phase tells whether a line is about the target or the drafter."""

    def __init__(self) -> None:
        self._part = ""
        self._runner = ""
        self._architectures = 0
        self._nccl, self._network = NetworkReader(), ""

    def read_line(self, body: str, at: float, phase: Phase) -> Iterator[AnyEvent]:
        """Yield the facts in a line."""
        of_drafter = _DRAFTER_PREFIX if phase is Phase.DRAFTER else ""
        for name, unit, pattern in _FIGURES:
            if match := pattern.match(body):
                value = match.groupdict().get("value") or next(group for group in match.groups() if group)
                full = of_drafter + name if name in _PER_MODEL_FIGURES else name
                if (figure := _read_figure(value.replace(",", ""))) is not None:
                    yield Stated(at, full, figure, unit)
        yield from self._read_notes(body, at, of_drafter)
        for step, pattern in _STEPS:
            if match := pattern.match(body):
                yield Compiled(at, match["part"] or self._part, step, _read_figure(match["s"]))
        if match := _CACHE_FOLDER.match(body):
            # Before 0.32 lines have no tag, but the cache folder is named after the part.
            self._part = PurePosixPath(match["path"]).name

    def _read_notes(self, body: str, at: float, of_drafter: str) -> Iterator[AnyEvent]:
        for name, pattern in _NOTES:
            if match := pattern.match(body):
                if name == "architecture":
                    self._architectures += 1
                    of_drafter = _DRAFTER_PREFIX if self._architectures > 1 else ""
                yield Noted(at, of_drafter + name if name != "aux layers" else name, "".join(match.groups("")))
        self._nccl.read_line(body)
        if self._nccl.network != self._network:
            self._network = self._nccl.network
            yield Noted(at, NCCL_NETWORK, self._network)
        for runner, pattern in _RUNNERS:
            if not self._runner and pattern.match(body):
                self._runner = runner
                yield Noted(at, "model runner", runner)


def parse_initialization(body: str, at: float) -> EngineInitialized | None:
    """Return how long the engine took to initialize, or None for any other line."""
    match = _INITIALIZED.match(body)
    seconds = _read_figure(match["s"]) if match else None
    if match is None or seconds is None:
        return None
    return EngineInitialized(at, seconds, _read_figure(match["compilation"]))


def _read_figure(text: str | None) -> float | None:
    """Return the number in a text; None without one, or if it is not finite."""
    try:
        figure = float(text) if text else math.inf
    except ValueError:  # it has two points, or only one point
        return None
    return figure if math.isfinite(figure) else None


def parse_speculation(body: str, at: float) -> Iterator[SpeculationLogged]:
    """Yield the figures of a line about ten seconds of speculation; nothing for any other line."""
    if not (match := _SPECULATION.match(body)):
        return
    per_position = tuple(map(float, _NUMBER.findall(match["positions"])))
    if all(map(math.isfinite, per_position)):
        length = _read_figure(match["length"])
        yield SpeculationLogged(at, length, int(match["accepted"]), int(match["drafted"]), per_position)


def parse_load(body: str, at: float) -> LoadLogged | None:
    """Return the running and waiting requests in a line, or None for any other line."""
    if not (match := _LOAD.match(body)):
        return None
    usage = _read_figure(match["usage"])
    share = None if usage is None or usage > 100 else usage / 100
    return LoadLogged(at, int(match["running"]), int(match["waiting"]), share)


def parse_progress(body: str, at: float, phase: Phase) -> Progressed | None:
    """Return the state of the progress bar in a line, or None without one."""
    for bar_phase, pattern in _BARS:
        if match := pattern.match(body):
            elapsed = _ELAPSED.search(body, match.end())
            seconds = None
            if elapsed:
                seconds = float(int(elapsed[1] or 0) * 3600 + int(elapsed[2]) * 60 + int(elapsed[3]))
            of_drafter = phase is Phase.DRAFTER and bar_phase is Phase.WEIGHTS
            return Progressed(
                at, phase if of_drafter else bar_phase, int(match["n"]), int(match["of"]), match["what"], seconds
            )
    return None
