"""What vLLM's log states of a start: figures, what it uses, and the steps of torch.compile. Pure; 0.20 to 0.33.

The patterns are matched at the beginning of a line's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import PurePosixPath

from dflash_tui.core.events import AnyEvent, Compiled, Noted, Phase, Progressed, Stated

TAG = r"(?:\[(?P<part>[\w./:-]+)\] )?"
# Name, unit and pattern of each figure; the groups of a pattern are the figures, in the order of the names.
FIGURES: tuple[tuple[str, str, str], ...] = (
    ("checkpoint_size", "GiB", r"Filesystem type for checkpoints: .*Checkpoint size: ([\d.]+) GiB"),
    ("weights_download", "s", r"Time spent downloading weights for .+: ([\d.]+) seconds"),
    ("weights_loading", "s", r"Loading weights took ([\d.]+) seconds"),
    ("model_memory", "GiB", r"Model loading took ([\d.]+) GiB"),
    ("model_loading", "s", r"Model loading took [\d.]+ GiB(?: memory)? and ([\d.]+) seconds"),
    ("dynamo", "s", rf"{TAG}Dynamo bytecode transform time: (?P<value>[\d.]+) s"),
    ("torch_compile", "s", rf"{TAG}torch\.compile took (?P<value>[\d.]+) s in total"),
    ("graph_estimate", "GiB", r"Estimated CUDA graph memory: (-?[\d.]+) GiB total"),
    ("kv_cache_memory", "GiB", r"Available KV cache memory: (-?[\d.]+) GiB|Explicitly set \(([\d.]+)/.* for KV cache"),
    ("kv_cache_size", "tokens", r"[A-Z]+ KV cache size: ([\d,]+) tokens"),
    ("kv_request", "tokens", r"(?:.*, )?Maximum concurrency for ([\d,]+) tokens per request: "),
    ("kv_concurrency", "x", r"(?:.*, )?Maximum concurrency for [\d,]+ tokens per request: ([\d.]+)x"),
    ("graph_capture", "s", r"Graph capturing finished in (\d+) secs"),
    ("graph_memory", "GiB", r"Graph capturing finished in \d+ secs, took (-?[\d.]+) GiB"),
    ("jit_warmup", "s", r"JIT kernel warmup finished in ([\d.]+)s"),
    ("init_engine", "s", r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s"),
    ("compilation", "s", r"init engine \(profile, create kv cache, .*\(compilation: ([\d.]+) s"),
)
# What a model of two has each: the second is the drafter's.
_OF_A_MODEL = frozenset({"checkpoint_size", "weights_download", "weights_loading"})

NOTES: tuple[tuple[str, str], ...] = (
    ("attention", r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]+) (?:attention backend out of |backend\b)"),
    ("flash attention", r"Using FlashAttention version (\d)"),
    ("moe", r"Using '?([\w .+-]+?)'? MoE backend"),
    ("moe", r"Using (\w+) backend for WNA16 MoE"),
    ("gemm", r"Using (\w+) for \w+ GEMM$"),
    ("gemm", r"Selected (\w+) for \w+"),
    ("sampler", r"Using (FlashInfer) for top-p & top-k sampling"),
    ("architecture", r"Resolved architecture: (\S+)"),
    ("vllm", r"Initializing a V1 LLM engine \(v([^)]+)\)"),
    ("aux layers", r"Using (?:auxiliary layers from speculative config|Eagle3 auxiliary layers from \w+): (.+)"),
)
RUNNERS: tuple[tuple[str, str], ...] = (
    ("V2", r"Using V2 Model Runner"),
    ("V1", r".*; using the V1 model runner instead\.|Defaulting to V1 model runner|Starting to load model .+\.\.\.$"),
)
STEPS: tuple[tuple[str, str], ...] = (
    ("dynamo", rf"{TAG}Dynamo bytecode transform time: (?P<s>[\d.]+) s"),
    ("inductor", rf"{TAG}Compiling a graph for compile range .+ takes (?P<s>[\d.]+) s"),
    (
        "loaded",
        rf"{TAG}Directly load the compiled graph\(s\) for compile range .+ from the cache, took (?P<s>[\d.]+) s",
    ),
    ("loaded", rf"{TAG}Directly load AOT compilation from path (?P<s>)"),
    ("again", rf"{TAG}Compiling model again due to a load failure from (?P<s>)"),
    ("saved", rf"{TAG}saved AOT compiled function to (?P<s>)"),
    ("total", rf"{TAG}torch\.compile took (?P<s>[\d.]+) s in total"),
)
BARS: tuple[tuple[Phase, str], ...] = (
    (
        Phase.WEIGHTS,
        r"(?:Multi-thread loading|Loading) (?P<what>)[^:]{3,80}?: +\d+% Completed \| (?P<n>\d+)/(?P<of>\d+)",
    ),
    (Phase.GRAPHS, r"Capturing CUDA graphs \((?P<what>[^)]*)\): +\d+%\|.*?\| *(?P<n>\d+)/(?P<of>\d+)"),
)
_FIGURES = tuple((name, unit, re.compile(pattern)) for name, unit, pattern in FIGURES)
_NOTES = tuple((name, re.compile(pattern)) for name, pattern in NOTES)
_RUNNERS = tuple((name, re.compile(pattern)) for name, pattern in RUNNERS)
_STEPS = tuple((name, re.compile(pattern)) for name, pattern in STEPS)
_BARS = tuple((phase, re.compile(pattern)) for phase, pattern in BARS)
_CLOCK = re.compile(r" \[(?:(\d+):)?(\d+):(\d+)[<,]")
_PART = re.compile(rf"{TAG}Using cache directory: (?P<path>\S+) for vLLM's torch\.compile")
_DRAFTER = "drafter "


class Facts:
    """Reads the facts of one start; which model a line means follows from the phase."""

    def __init__(self) -> None:
        self._part = ""
        self._runner = ""
        self._architectures = 0

    def take(self, body: str, at: float, phase: Phase) -> Iterator[AnyEvent]:
        """Yield what this line states."""
        of_drafter = _DRAFTER if phase is Phase.DRAFTER else ""
        for name, unit, pattern in _FIGURES:
            if match := pattern.match(body):
                value = match.groupdict().get("value") or next(group for group in match.groups() if group)
                full = of_drafter + name if name in _OF_A_MODEL else name
                yield Stated(at, full, float(value.replace(",", "")), unit)
        yield from self._notes(body, at, of_drafter)
        for step, pattern in _STEPS:
            if match := pattern.match(body):
                yield Compiled(at, match["part"] or self._part, step, float(match["s"]) if match["s"] else None)
        if match := _PART.match(body):
            # Before 0.32 lines have no tag; the folder of the cache is named after the part.
            self._part = PurePosixPath(match["path"]).name

    def _notes(self, body: str, at: float, of_drafter: str) -> Iterator[AnyEvent]:
        for name, pattern in _NOTES:
            if match := pattern.match(body):
                if name == "architecture":
                    self._architectures += 1
                    of_drafter = _DRAFTER if self._architectures > 1 else ""
                yield Noted(at, of_drafter + name if name != "aux layers" else name, match[1])
        for runner, pattern in _RUNNERS:
            if not self._runner and pattern.match(body):
                self._runner = runner
                yield Noted(at, "model runner", runner)


def progress(body: str, at: float, phase: Phase) -> Progressed | None:
    """Return how far the progress bar in this line is, or None when there is none."""
    for of, pattern in _BARS:
        if match := pattern.match(body):
            clock = _CLOCK.search(body, match.end())
            seconds = None
            if clock:
                seconds = float(int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + int(clock[3]))
            meant = Phase.DRAFTER if phase is Phase.DRAFTER and of is Phase.WEIGHTS else of
            return Progressed(at, meant, int(match["n"]), int(match["of"]), match["what"], seconds)
    return None
