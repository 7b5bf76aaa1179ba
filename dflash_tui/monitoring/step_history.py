"""Read how long the steps of earlier runs took, to compare numbers of drafts."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.events import OURS, RequestDone
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.run_state.speculation import DraftForecast, forecast_drafts
from dflash_tui.runs import registry

# Requests of the same kind whose prompts differ by more than this share have other contexts.
_SAME_LENGTH = 0.1
_DRAFTS = ("n", "num_speculative_tokens")


class _Steps(NamedTuple):
    """The step times of one kind of prompt: of requests one at a time, of about the same length."""

    prompt_tokens: float
    seconds: float


def forecast_from_history(
    plan: Plan, done: Sequence[RequestDone], shares: Sequence[float | None], steps: float
) -> DraftForecast | None:
    """Return `forecast_drafts` of a bench, by the steps of earlier runs of this launch with other numbers of drafts."""
    ours, by_drafts = _group_steps(done), defaultdict[int, dict[str, list[RequestDone]]](dict)
    if not ours or plan.accepts_synthetically or len(shares) != plan.num_speculative_tokens:
        return None
    key = _describe_launch(plan)
    for run in registry.list_runs():
        if run.plan.num_speculative_tokens < len(shares) and _describe_launch(run.plan) == key:
            requests = [request for request in run.read_recorded(RequestDone) if request.kind not in OURS]
            by_drafts[run.plan.num_speculative_tokens][run.id] = requests
    ratios, runs = dict[int, float](), list[str]()
    for drafts, by_run in by_drafts.items():
        theirs = _group_steps([request for own in by_run.values() for request in own])
        if alike := [theirs[kind].seconds / ours[kind].seconds for kind in ours if _is_alike(ours, theirs, kind)]:
            ratios[drafts] = statistics.geometric_mean(alike)
            runs += [run for run, own in by_run.items() if own]
    found = forecast_drafts(shares, steps, ratios)
    return replace(found, runs=tuple(runs)) if found else None


def build_trial(plan: Plan, forecast: DraftForecast) -> tuple[LaunchRequest, str]:
    """Return the launch of `plan` with its drafts and port left open, and the variation of it that tries a forecast."""
    without = LaunchChanges(removed=("port", "num_speculative_tokens"), removed_settings=_DRAFTS)
    return plan.relaunch_request.with_changes(without), f"n={plan.num_speculative_tokens},{forecast.tokens}"


def _describe_launch(plan: Plan) -> object:
    request = plan.relaunch_request
    settings = {name: value for name, value in request.settings.items() if name not in _DRAFTS}
    return replace(plan, num_speculative_tokens=0).kind, plan.hardware, plan.patches, plan.set_up, settings


def _group_steps(done: Sequence[RequestDone]) -> dict[str, _Steps]:
    by_kind = defaultdict[str, list[RequestDone]](list)
    for request in done:
        if request.streams == 1 and not request.error and request.steps_s:
            by_kind[request.kind].append(request)
    return {
        kind: _Steps(
            statistics.median(request.prompt_tokens for request in requests),
            statistics.median(1 / request.steps_s for request in requests if request.steps_s),
        )
        for kind, requests in by_kind.items()
    }


def _is_alike(ours: dict[str, _Steps], theirs: dict[str, _Steps], kind: str) -> bool:
    return kind in theirs and abs(theirs[kind].prompt_tokens / max(1.0, ours[kind].prompt_tokens) - 1) <= _SAME_LENGTH
