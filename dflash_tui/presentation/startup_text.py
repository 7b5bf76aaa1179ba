"""The text of a start: a row per phase, facts about the server, and the time until it is ready."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple

from dflash_tui.common.formatting import (
    UNKNOWN,
    format_duration,
    format_megabytes,
    format_number,
    format_percent,
    pluralize,
)
from dflash_tui.events import Health, Phase, Preparing, Step
from dflash_tui.monitoring.startup_history import (
    MIN_STEP_SECONDS,
    ExpectedStart,
    MedianSeconds,
    StartKind,
    estimate_time_to_launch,
    estimate_time_to_ready,
)
from dflash_tui.run_state.startup import PhaseSpan, Silence, Startup, detect_silence
from dflash_tui.run_state.state import RunState

_GIB_IN_GB = 1.073741824
_MEASURABLE = 0.05  # seconds; too short to compute a speed from
_ASKED_LATE = 60.0
_ORDER = list(Phase)


GLOSSES = (
    ("install", "the engine: a Python environment with this release of vLLM"),
    ("check", "the models and flags are checked before the launch"),
    ("models", "weights are downloaded or built"),
    ("patches", "the plan's patches of vLLM's files are applied"),
    ("inspect", "vLLM reads the models' classes once, so that the server need not"),
    (Phase.IMPORT.value, "Python imports torch and vLLM; nothing is logged meanwhile"),
    (Phase.RESOLVE.value, "vLLM reads the models' config.json and settles its own settings"),
    (Phase.ENGINE.value, "the engine process starts and takes the GPU"),
    (Phase.RANKS.value, "the server waits for the ranks on other hosts"),
    (Phase.WEIGHTS.value, "the target's weights are loaded"),
    (Phase.DRAFTER.value, "the drafter's weights are loaded"),
    (Phase.COMPILE.value, "torch.compile: cold compiles, cached loads what an earlier start compiled"),
    (Phase.PROFILE.value, "one large batch is run to measure how much memory is left"),
    (Phase.KV_CACHE.value, "memory for the keys and values of tokens is reserved"),
    (Phase.AUTOTUNE.value, "kernels are timed to find the fastest"),
    (Phase.GRAPHS.value, "decode steps are recorded as CUDA graphs"),
    (Phase.JIT.value, "kernels are compiled as they are first needed"),
    (Phase.API.value, "the HTTP server starts"),
    (Phase.UP.value, "the log says that the server listens; no request was sent yet"),
    (Health.HEALTHY.value, "/health answered 200; whether it can generate is not known"),
    (Health.WARM.value, "it has answered a first real request: only now it is ready"),
    (Phase.UNATTRIBUTED.value, "time that the log does not explain"),
)
"""The steps, phases and ends of a start, each explained in one line."""


class RowMark(Enum):
    """The state of a row; the value is the sign drawn, so that states do not differ by colour alone."""

    DONE = "✓"
    RUNNING = "◐"
    STALLED = "!"
    FAILED = "✗"
    TO_COME = "·"


class StartupRow(NamedTuple):
    """One step or phase of a start: seconds so far (None if unknown), expected seconds, a remark, and what is done."""

    mark: RowMark
    name: str
    seconds: float | None
    expected: MedianSeconds | None = None
    note: str = ""
    fraction: float | None = None


def format_expected(expected: MedianSeconds | None) -> str:
    """Return `≈ 35 s (3 starts)`, or a dash without history."""
    return f"≈ {format_duration(expected.seconds)} ({pluralize(expected.n, 'start')})" if expected else UNKNOWN


def format_spread(kind: StartKind) -> str:
    """Return the shortest and longest time to ready; a dash for fewer than two starts."""
    if len(kind.times_to_ready) < 2:
        return UNKNOWN
    return f"{format_duration(min(kind.times_to_ready))} – {format_duration(max(kind.times_to_ready))}"


def build_step_rows(state: RunState, now: float, usual: Mapping[Step, MedianSeconds]) -> list[StartupRow]:
    """Return the steps before the launch, here and on other hosts, with what they took in earlier runs.

    While a step runs its seconds count up, so that it never looks dead: since its last message, or since it began if
    its usual duration is shown.
    """
    rows = []
    for step, event in state.preparing.items():
        began = state.step_began[step]
        guess = usual.get(step) if not event.done or event.at - began >= MIN_STEP_SECONDS else None
        rows.append(_step_row(event, event.text, began, now, guess))
    return rows + [_step_row(far, f"{far.host}: {far.text}", far.at, now, None) for far in state.far_steps.values()]


def _step_row(event: Preparing, text: str, began: float, now: float, guess: MedianSeconds | None) -> StartupRow:
    if event.done:
        took = event.at - began if event.at > began else None  # there was nothing to do
        return StartupRow(RowMark.DONE, event.step.value, took, guess, text)
    since = max(0.0, now - (began if guess else event.at))
    return StartupRow(RowMark.RUNNING, event.step.value, since, guess, text, event.fraction)


def build_startup_rows(state: RunState, now: float, expected: ExpectedStart | None) -> list[StartupRow]:
    """Return the past, current and coming phases until the server is ready."""
    if not state.startup.phase_changes:
        return []
    spans = state.startup.spans(now, state.exit.at if state.exit else None)
    quiet = None if state.exit else find_silence(state, now, expected)
    named = [span for span in spans if span.phase is not Phase.UNATTRIBUTED]
    unclear = [span for span in spans if span.phase is Phase.UNATTRIBUTED and (span.seconds >= 1 or not span.finished)]
    rows = [_phase_row(state, span, expected, quiet) for span in named]
    if state.up_at is None and state.exit is None and expected:
        reached = max(_ORDER.index(span.phase) for span in named)
        coming = [phase for phase in expected.phases if reached < _ORDER.index(phase) < _ORDER.index(Phase.UP)]
        rows += [StartupRow(RowMark.TO_COME, phase.value, None, expected.phases[phase]) for phase in coming]
    rows += _list_rows_after_up(state, now, expected, quiet)
    return rows + [_phase_row(state, span, expected, quiet) for span in unclear]


def _explain_phase(phase: Phase) -> str:
    return dict(GLOSSES).get(phase.value, "").partition(";")[0]


def find_silence(state: RunState, now: float, expected: ExpectedStart | None) -> Silence | None:
    """Return the current silence of a start, or None."""
    startup = state.startup
    usual = expected.phases.get(startup.phase) if expected and startup.phase else None
    last = state.lines[-1].at if state.lines else state.started_at
    return detect_silence(startup, last, now, usual.seconds if usual else None) if last is not None else None


def _phase_row(state: RunState, span: PhaseSpan, expected: ExpectedStart | None, quiet: Silence | None) -> StartupRow:
    running = not span.finished and state.up_at is None
    mark = RowMark.RUNNING if running else RowMark.DONE
    note = _format_note(state, span) or (_explain_phase(span.phase) if running else "")
    if state.exit is not None and state.up_at is None and span.phase is state.startup.phase:
        mark = RowMark.FAILED
    elif running and quiet:
        mark = RowMark.STALLED if quiet.warning else mark
        note = f"no line for {format_duration(quiet.seconds)}"
    return StartupRow(mark, span.phase.value, span.seconds, expected.phases.get(span.phase) if expected else None, note)


def format_silence(quiet: Silence) -> str:
    """Return how long the log has been silent, and what the processes are probably doing."""
    work = ""
    if quiet.cores is not None and quiet.disk is not None:
        idle = "no CPU or disk in use" if quiet.warning else f"{quiet.cores:.1f} cores busy"
        work = f", {idle}" + (f", disk {quiet.disk / 1e6:.0f} MB/s" if quiet.disk >= 1e6 else "")
    return f"no line for {format_duration(quiet.seconds)}{work}: probably {quiet.likely_cause}"


def _list_rows_after_up(
    state: RunState, now: float, expected: ExpectedStart | None, quiet: Silence | None
) -> list[StartupRow]:
    startup, first = state.startup, state.startup.first_request
    waiting = RowMark.TO_COME if state.up_at is None or state.exit else RowMark.RUNNING
    healthy = StartupRow(
        waiting, "healthy", None, note="/health has not answered yet" if waiting is RowMark.RUNNING else ""
    )
    if startup.healthy_at is not None and state.up_at is not None:
        took = max(0.0, startup.healthy_at - state.up_at)
        late = took > _ASKED_LATE  # no observer was attached
        healthy = StartupRow(RowMark.DONE, "healthy", None if late else took, note="/health answered 200")
    guessed = expected.first_request if expected else None
    if first is not None and not first.error:
        ttft = f", first token after {first.ttft:.2f} s" if first.ttft is not None else ""
        before = " after a greedy one" if startup.greedy_request else ""
        note = f"first request, {first.tokens} tokens{ttft}{before}{' and longer ones' if startup.long_seconds else ''}"
        return [healthy, StartupRow(RowMark.DONE, "warm", startup.warm_up_seconds + first.total, guessed, note)]
    if (first is not None and first.error) or (state.exit and state.up_at is not None and startup.healthy_at):
        why = first.error if first is not None else "the server exited on it"
        return [healthy, StartupRow(RowMark.FAILED, "warm", None, guessed, f"first request failed: {why}")]
    if startup.healthy_at is not None and not state.exit:
        note = "first real request"
        mark = RowMark.STALLED if quiet and quiet.warning else RowMark.RUNNING
        return [healthy, StartupRow(mark, "warm", max(0.0, now - startup.healthy_at), guessed, note)]
    return [healthy, StartupRow(RowMark.TO_COME, "warm", None, guessed)]


def _format_note(state: RunState, span: PhaseSpan) -> str:
    startup = state.startup
    match span.phase:
        case Phase.WEIGHTS | Phase.DRAFTER:
            return _format_weights(state, span.phase)
        case Phase.COMPILE:
            return list_compiled_parts(startup)
        case Phase.KV_CACHE:
            return format_kv_cache(state)
        case Phase.GRAPHS:
            return _format_graphs(state)
        case _:
            return ""


def _logged_figure(state: RunState, name: str) -> float | None:
    return state.log_figures[name].value if name in state.log_figures else None


def _format_weights(state: RunState, phase: Phase) -> str:
    bar = state.startup.progress_bars.get((phase, ""))
    of = "drafter " if phase is Phase.DRAFTER else ""
    size, took = _logged_figure(state, f"{of}checkpoint_size"), _logged_figure(state, f"{of}weights_loading")
    parts = [f"{bar.done}/{pluralize(bar.total, 'shard')}"] if bar else []
    share = 1.0 if took is not None or bar is None else bar.done / bar.total if bar.total else 0.0
    seconds = took if took is not None else bar.seconds if bar else None
    if size:
        parts.append(f"{size * share:.1f} of {size:.1f} GiB" if share < 1 else f"{size:.1f} GiB")
        if seconds and seconds >= _MEASURABLE and share:
            parts.append(f"{format_megabytes(round(size * share * _GIB_IN_GB * 1000 / seconds))}/s")
    return " · ".join(parts)


def list_compiled_parts(startup: Startup) -> str:
    """Return the compiled parts, each with its steps, and whether the compile cache was used."""
    parts = []
    for name, steps in startup.compiled.items():
        step_times = [f"{label} {steps[step]:.1f}" for step, label in _STEPS.items() if steps.get(step) is not None]
        total = steps.get("total")
        words = [name or "model"] + ([f"{total:.1f} s"] if total is not None else [])
        parts.append(" ".join(words) + (f" ({', '.join(step_times)})" if step_times else ""))
    return " · ".join([*([startup.cache] if startup.cache else []), *parts])


_STEPS = {"dynamo": "Dynamo", "inductor": "Inductor", "loaded": "loaded in"}


def format_kv_cache(state: RunState) -> str:
    """Return the tokens that the KV cache holds, and how many requests of the longest length that is."""
    tokens, times, request_tokens = (
        _logged_figure(state, name) for name in ("kv_cache_size", "kv_concurrency", "kv_request")
    )
    parts = [f"{tokens:,.0f} tokens"] if tokens is not None else []
    if times is not None and request_tokens is not None:
        parts.append(f"{times:,.2f} requests of {request_tokens:,.0f}")
    return " · ".join(parts)


def _format_graphs(state: RunState) -> str:
    bars = [bar for (phase, _), bar in state.startup.progress_bars.items() if phase is Phase.GRAPHS]
    memory = _logged_figure(state, "graph_memory")
    if memory is None:
        return f"{bars[-1].done}/{bars[-1].total} {bars[-1].what}" if bars else ""
    return " · ".join([pluralize(sum(bar.done for bar in bars), "graph"), f"{memory:.2f} GiB"])


def list_facts(state: RunState) -> list[tuple[str, str]]:
    """Return the facts that the server logged, as labels and values."""
    logged_facts = state.startup.facts
    facts = _list_logged_speculation(state)
    for of in ("", "drafter "):
        if backend := logged_facts.get(f"{of}attention"):
            version = logged_facts.get(f"{of}flash attention")
            facts.append((f"{of}attention", ", ".join(backend) + (f" (version {version[0]})" if version else "")))
    for name, label in (("model runner", "runner"), ("moe", "MoE"), ("gemm", "GEMM"), ("sampler", "sampler")):
        if name in logged_facts:
            facts.append((label, ", ".join(logged_facts[name])))
    if (weights := _logged_figure(state, "model_memory")) is not None:
        facts.append(("weights", f"{weights:.2f} GiB"))
    if (memory := _logged_figure(state, "kv_cache_memory")) is not None:
        facts.append(("KV cache", " · ".join(filter(None, [f"{memory:.2f} GiB", format_kv_cache(state)]))))
    graphs = _logged_figure(state, "graph_memory")
    estimate = _logged_figure(state, "graph_estimate")
    if graphs is not None or estimate is not None:
        facts.append(("graphs", f"{graphs:.2f} GiB" if graphs is not None else f"{estimate:.2f} GiB estimated"))
    facts += _list_initialization(state)
    if layers := logged_facts.get("aux layers"):
        facts.append(("drafter reads layers", "; ".join(layer.strip("()[] ") for layer in layers)))
    return facts


def _list_initialization(state: RunState) -> list[tuple[str, str]]:
    if (begun := state.initialized) is None:
        return []
    of = f", {format_duration(begun.compilation)} of it compiling" if begun.compilation is not None else ""
    return [("engine initialised in", f"{format_duration(begun.seconds)}{of} (by the log)")]


def _list_logged_speculation(state: RunState) -> list[tuple[str, str]]:
    if (logged := state.logged_speculation) is None or state.readings:
        return []
    length = f"AL {format_number(logged.acceptance_length, 2)}, " if logged.acceptance_length is not None else ""
    share = format_percent(logged.accepted / logged.drafted, 1) if logged.drafted else UNKNOWN
    of = f"of {pluralize(logged.drafted, 'drafted token')}"
    return [("speculation", f"{length}acceptance {share} {of} (by the log, of ten seconds)")]


def format_ready_in(
    state: RunState, now: float, expected: ExpectedStart | None, usual: Mapping[Step, MedianSeconds] | None = None
) -> str:
    """Return the estimated time until the start is ready; empty if it is over or has no history.

    `expected` is what earlier starts like this one took, `usual` what the steps before a launch take.
    """
    if state.exit or state.health is Health.UNHEALTHY or state.ready_at is not None:
        return ""
    if state.started_at is None:
        return _format_ready_before_launch(state, now, expected, usual or {}) if state.preparing else ""
    if expected is None:
        return "no start like this was recorded here yet: no estimate"
    estimate = estimate_time_to_ready(state.startup, expected, now - state.started_at, now)
    if estimate is None:
        return "no start like this was answered here yet: no estimate"
    often = f"the {estimate.n} starts" if estimate.n > 1 else "the one start"
    if estimate.seconds is None:
        return f"longer than {often} before (longest {format_duration(estimate.longest)})"
    kind = f"{expected.cache} " if expected.cache else ""
    return f"ready in ≈ {format_duration(estimate.seconds)} (estimate from {pluralize(estimate.n, f'{kind}start')})"


def _format_ready_before_launch(
    state: RunState, now: float, expected: ExpectedStart | None, usual: Mapping[Step, MedianSeconds]
) -> str:
    if expected is None or expected.ready is None:
        return ""
    left, (seconds, n) = estimate_time_to_launch(state.preparing, state.step_began, usual, now), expected.ready
    text = f"ready ≈ {format_duration(seconds)} after its launch"
    if left is not None:
        text = f"ready in ≈ {format_duration(left + seconds)}"
    return f"{text} (estimate from {pluralize(n, 'start')})"
