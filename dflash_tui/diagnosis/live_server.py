"""Explain why a running server is slow or wrong: a run by its files and by watching it, another server by its URL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import msgspec

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_number, pluralize
from dflash_tui.common.sanitizer import clean_line
from dflash_tui.diagnosis.explanation import Explanation, explain_alarms
from dflash_tui.events import AnyEvent, Exited, Health, HealthChanged
from dflash_tui.monitoring import observer, recording
from dflash_tui.monitoring.foreign_server import ForeignServer
from dflash_tui.monitoring.server_identity import (
    CHECK_ADDRESS,
    build_no_models_error,
    choose_kind,
    list_series,
    read_models,
)
from dflash_tui.run_state.alarms import Alarm, find_alarms, find_all_alarms, find_log_alarms
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import server_process
from dflash_tui.runs.run import Run
from dflash_tui.vllm_output.metrics import parse_sample

WINDOW = 12.0
_MOST_LOOKS, _LOOK_SECONDS = 300, 5.0
_LOG_HINT = "read its log: docker logs NAME 2>&1 | dflash-tui why -"


def explain_run(run: Run, state: RunState) -> Explanation:
    """Return the alarms of a run that did not fail, watching it for `WINDOW` seconds if it runs.

    For a run that has ended, return the alarms from while it ran; `state` comes from its files.
    """
    if state.exit is None and not isinstance(run, recording.Recording) and server_process.is_alive(run):
        state = asyncio.run(_watch_run(run))
        alarms, status = find_all_alarms(state, time.time()), f"is {state.status}"
    else:
        alarms, status = _collect_alarms(recording.open_recording(run).events(), state), "was stopped"
    explanation = explain_alarms(alarms, state, f"{run.id} {status}, and nothing shows that it is slow or wrong")
    return _add_figures(explanation, state, run.plan.vllm)


async def _watch_run(run: Run) -> RunState:
    async with observer.fold_run(run) as (state, ended):
        await asyncio.wait((ended,), timeout=WINDOW)
        return state


def _collect_alarms(events: Iterable[AnyEvent], ended: RunState) -> list[Alarm]:
    alarms = {alarm.kind: alarm for alarm in find_log_alarms(ended)}
    end = ended.exit.at if ended.exit else ended.lines[-1].at if ended.lines else 0.0
    interval = max(_LOOK_SECONDS, (end - (ended.up_at or end)) / _MOST_LOOKS)
    state, due = RunState(), ended.up_at or end
    for event in events:
        while due <= event.at and not isinstance(event, Exited):
            alarms |= {alarm.kind: alarm for alarm in find_alarms(state, due) if alarm.kind not in alarms}
            due += interval
        state.apply(event)
    return [*alarms.values()]


def _add_figures(explanation: Explanation, state: RunState, vllm: str) -> Explanation:
    last, drafts = state.readings[-1] if state.readings else None, state.drafts
    rates = state.readings.between(last.at - WINDOW, last.at) if last else None
    figures = {
        "acceptance_length": 1 + drafts.accepted / drafts.steps if drafts.steps else None,
        "acceptance": drafts.accepted / drafts.drafted if drafts.drafted else None,
        "requests": last.counters.finished if last else None,
        "tok_s": rates.tok_s if rates else None,
    }
    known = {name: round(value, 4) for name, value in figures.items() if value is not None}
    return msgspec.structs.replace(explanation, figures=known, versions={"vllm": vllm} if vllm else {})


def explain_url(url: str) -> Explanation:
    """Return the alarms of a server that dflash-tui did not launch, from its /metrics over `WINDOW` seconds."""
    server, state = ForeignServer(url), RunState()
    asyncio.run(_watch_server(server, state))
    if not state.readings:
        return asyncio.run(_explain_other(server, state.health_detail))
    well = f"{server.url} answers, and nothing shows that it is slow or wrong"
    explanation = explain_alarms(find_all_alarms(state, time.time()), state, well)
    finished = pluralize(round(state.readings[-1].counters.finished), "request")
    notes = (f"{server.identity.model or 'its model is unknown'}: by its counters since its start ({finished}) and "
             f"the last {WINDOW:.0f} s; for more {_LOG_HINT}",)  # fmt: skip
    version = server.identity.version if server.identity.version != "version unknown" else ""
    return msgspec.structs.replace(_add_figures(explanation, state, version), notes=notes)


async def _watch_server(server: ForeignServer, state: RunState) -> None:
    """Apply the events of `WINDOW` seconds to `state`; stop early if the server is unhealthy without counters."""
    try:
        async with asyncio.timeout(WINDOW):
            async for event in server.events():
                if isinstance(event, HealthChanged) and event.health is Health.UNHEALTHY and not server.answers:
                    raise DflashError(server.fault, evidence=event.detail, hint=CHECK_ADDRESS)
                state.apply(event)
                if state.health is Health.UNHEALTHY and not state.readings:
                    return
    except TimeoutError:
        pass


_NOT_VLLM = "dflash-tui judges vLLM only; for another server compare its own figures with and without speculation"


async def _explain_other(server: ForeignServer, detail: str) -> Explanation:
    metrics, models, root = [
        (await server.read(path)).decode(errors="replace") for path in ("/metrics", "/v1/models", "/")
    ]
    listed, series = read_models(models), list_series(metrics)
    names, kind = [clean_line(model.id)[:200] for model in listed[:8]], choose_kind(series, listed)
    if kind is None and not names:
        raise build_no_models_error(server.url, root, detail, missing="no model")
    read = [f"models: {', '.join(names)}"] if names else []
    if kind:
        samples = [sample for line in metrics.splitlines() if (sample := parse_sample(line))]
        read += [f"{words}: {format_number(sample.value, 2)} ({sample.name})"
                 for sample in samples if (words := kind.figures.get(sample.name))]  # fmt: skip
    if kind and kind.name == "vLLM":
        told = sum(name.startswith(kind.series) for name in series)
        why = "this release may name them differently" if told else "--disable-log-stats omits them"
        cause = f"{server.url} is vLLM, and its /metrics has none of the counters that are read here: {why}"
        return Explanation("unknown metrics", cause, (*read, f"{told} series of vLLM in /metrics"), (_LOG_HINT,))
    what = f"is {kind.name}, not vLLM" if kind else "serves models, and is not vLLM"
    return Explanation("other server", f"{server.url} {what}", tuple(read) or (detail,), (_NOT_VLLM,))
