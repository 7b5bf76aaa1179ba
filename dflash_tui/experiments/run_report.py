"""The report of one run: what was launched, how it started and what was measured on it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from dflash_tui.common.secrets import redact_argv, redact_variables
from dflash_tui.events import OURS, RequestDone
from dflash_tui.experiments import conditions
from dflash_tui.experiments.design import Conditions
from dflash_tui.monitoring.recording import Recording
from dflash_tui.planning.plan import Plan
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.metrics import Rates


class RunReport(msgspec.Struct, frozen=True):
    """What is known of one run; seconds are since the launch.

    `up` is when the log said that it serves, `ready` its first answer, None when it did not come to that. `phases` are
    the seconds of each, `facts` what the server said that it uses. `rates` are differences of its counters from the
    first reading to the last, None without two; the rest of the server's traffic is in them. `requests` are those that
    were measured on it, our own small ones left out. `conditions` are what the GPUs said while they were measured, None
    without any. `plan` has no secrets.
    """

    run: str
    at: float
    plan: Plan
    engine: str
    patches: tuple[str, ...]
    status: str
    cache: str
    up: float | None
    ready: float | None
    phases: dict[str, float]
    facts: dict[str, tuple[str, ...]]
    rates: Rates | None
    requests: tuple[RequestDone, ...]
    forced: str = ""
    restarted_from: str = ""
    conditions: Conditions | None = None


def build_run_report(recording: Recording) -> tuple[RunReport, RunState]:
    """Return the report of a run, and the state that it was read from.

    Raises:
        DflashError: the recording cannot be read to its end.
    """
    state, requests = RunState(), list[RequestDone]()
    for event in recording.events():
        state.apply(event)
        if isinstance(event, RequestDone) and event.kind not in OURS:
            requests.append(event)  # the state keeps the last ones only
    now, began = recording.last_event_time(), recording.started_at
    report = RunReport(
        run=recording.id,
        at=began,
        plan=redact_plan(recording.plan),
        engine=recording.engine,
        patches=recording.patches,
        status=state.status,
        cache=state.startup.cache,
        up=state.time_to_up,
        ready=state.time_to_ready,
        phases={span.phase.value: span.seconds for span in state.spans(state.up_at or now)},
        facts={name: tuple(values) for name, values in state.startup.facts.items()},
        rates=state.window(max(1.0, now - began), now),
        requests=tuple(requests),
        forced=recording.forced,
        restarted_from=recording.restarted_from,
        conditions=_conditions(state, requests),
    )
    return report, state


def _conditions(state: RunState, requests: Sequence[RequestDone]) -> Conditions | None:
    """Return the worst that the GPUs said from the first request to the end of the last one."""
    if not requests:
        return None
    since = min(done.at - done.total for done in requests)
    return conditions.summarize_gpu_samples(state.gpus, since, max(done.at for done in requests))


def redact_plan(plan: Plan) -> Plan:
    """Return a plan without secrets in its environment, its command and its request."""
    request = plan.request.without_secrets() if plan.request else None
    return replace(plan, env=redact_variables(plan.env), argv=redact_argv(plan.argv), request=request)
