"""The report of one run: its launch, start and measurements."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.common.secrets import redact_argv, redact_variables
from dflash_tui.events import OURS, RequestDone
from dflash_tui.experiments import boot_server
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.confounds import parse_argv_options
from dflash_tui.experiments.analysis.report import Comparison, Confound, ExperimentReport, Verdict
from dflash_tui.experiments.design import Arm, Boot, Conditions, Design
from dflash_tui.monitoring.recording import Recording
from dflash_tui.planning import cuda_graphs
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.metrics import Rates

VARY = "run"  # the key if nothing is varied on purpose
_MEASURED_ALIKE = {
    "digest": "the prompts differ",
    "seed": "the seed differs",
    "temperature": "the temperature differs",
    "top_p": "top-p differs",
    "scale": "the answers' length differs",
    "fixed": "only one of them generates past the model's end token",
    "concurrency": "the number of streams differs",
}
_PARTS = {"method": "method", "target": "target", "drafter": "drafter", "mode": "mode", "num_speculative_tokens": "n",
          "unpatched_folder": "engine", "hardware": "hardware"}  # fmt: skip
# Recorded for a boot of an experiment but not for a run.
_UNRECORDED = (
    "the prompts, their order and the sampling, the GPU's name, the driver, the versions beside the engine's, the "
    "environment that it was launched from, what the patches changed, the power supply, other load on the machine"
)


class RunReport(msgspec.Struct, frozen=True):
    """The report of one run; seconds count from the launch.

    `up` is when the log said that the server listens, `ready` its first answer. `facts` are from the server's log,
    `rates` cover all its traffic, `requests` are the measured ones, `conditions` are those of its GPUs meanwhile.
    `plan` has no secrets.
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
    """Return the report of a run, and the state that it was read from."""
    state, requests = RunState(), list[RequestDone]()
    for event in recording.events():
        state.apply(event)
        if isinstance(event, RequestDone) and event.kind not in OURS:
            requests.append(event)  # the state keeps only the last ones
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
        rates=state.readings.window(max(1.0, now - began), now),
        requests=tuple(requests),
        forced=recording.forced,
        restarted_from=recording.restarted_from,
    )
    if requests:
        since, until = min(done.at - done.total for done in requests), max(done.at for done in requests)
        report = replace(report, conditions=boot_server.summarize_gpu_samples(state.gpus, since, until))
    return report, state


def redact_plan(plan: Plan) -> Plan:
    """Return a plan without secrets in its environment, command and request."""
    request = plan.request.without_secrets() if plan.request else None
    return replace(plan, env=redact_variables(plan.env), argv=redact_argv(plan.argv), request=request)


class Side(msgspec.Struct, frozen=True):
    """One side of a comparison: its name, plan and boots, and the design of its experiment, if any."""

    name: str
    plan: Plan
    boots: tuple[Boot, ...]
    design: Design | None = None


def sides_of_report(report: ExperimentReport) -> dict[str, Side]:
    """Return the arms of an experiment as sides, by name."""
    design = report.design
    return {
        arm.name: Side(f"{design.id} {arm.name}", arm.plan, tuple(b for b in report.boots if b.arm == place), design)
        for place, arm in enumerate(design.arms)
    }


def side_of_run(report: RunReport) -> Side:
    """Return a run as a side of one boot; its counters cover the whole run."""
    rates = report.rates
    hit = rates.prefix_hit if rates else None
    boot = Boot(
        number=0, arm=0, run=report.run, began=report.at, cache=report.cache, up=report.up, ready=report.ready,
        phases=report.phases, requests=report.requests, engine=report.engine, argv=report.plan.argv,
        env=report.plan.env, patches=dict.fromkeys(report.patches, ""),
        preemptions=(rates.preemptions or 0.0) if rates else 0.0, after=report.conditions,
        prefix_queries=0.0 if hit is None else 1.0, prefix_hits=hit or 0.0,  # only the share is known
    )  # fmt: skip
    return Side(report.run, report.plan, (boot,))


def judge_sides(ours: Side, theirs: Side) -> ExperimentReport:
    """Return the report of `theirs` against `ours`, judged like the arms of an experiment."""
    varied = compare_plans(ours.plan, theirs.plan)
    meant = len(varied) == 1
    # With the same plan for both, every other difference in the launch of the other side refuses a verdict.
    plans = (ours.plan, theirs.plan if meant else ours.plan)
    names, vary = _name_sides(ours, theirs, varied)
    arms = tuple(Arm(name, plan.relaunch_request, plan) for name, plan in zip(names, plans, strict=True))
    boots = [(place, boot) for place, side in enumerate((ours, theirs)) for boot in side.boots]
    renumbered = [replace(boot, number=number, arm=place) for number, (place, boot) in enumerate(boots)]
    base = ours.design or theirs.design or Design("", 0.0, "", "", "", (), (), suite="", digest="", temperature=None)
    design = replace(
        base, id=f"{ours.name} and {theirs.name}", made_at=max((boot.began for boot in renumbered), default=0.0),
        version=__version__, recipe=ours.plan.recipe, vary=vary, arms=arms,
        order=tuple(boot.arm for boot in renumbered), synthetic=ours.plan.synthetic or theirs.plan.synthetic,
        command="",
    )  # fmt: skip
    report = verdict.build_report(design, renumbered)
    confounds = tuple(_find_differences(ours, theirs, varied))
    comparisons = tuple(_add_confounds(comparison, confounds) for comparison in report.comparisons)
    return replace(report, comparisons=comparisons)


def _name_sides(ours: Side, theirs: Side, varied: list[str]) -> tuple[tuple[str, str], str]:
    if varied == ["mode"]:
        return (ours.plan.mode.value, theirs.plan.mode.value), "mode"
    if varied == ["n"]:
        return (str(ours.plan.num_speculative_tokens), str(theirs.plan.num_speculative_tokens)), "n"
    if len(varied) == 1 and varied[0].startswith("patch."):
        name = varied[0].removeprefix("patch.")
        first, second = ("on" if name in side.plan.patches else "off" for side in (ours, theirs))
        return (first, second), varied[0]
    return (ours.name, theirs.name), VARY


def _add_confounds(comparison: Comparison, confounds: tuple[Confound, ...]) -> Comparison:
    refused = any(confound.refuses for confound in confounds)
    word = Verdict.REFUSED if refused else comparison.word
    return replace(
        comparison,
        confounds=(*confounds, *comparison.confounds),
        word=word,
        break_even=() if refused else comparison.break_even,
        further=tuple(replace(further, word=word) if refused else further for further in comparison.further),
    )


def _find_differences(ours: Side, theirs: Side, varied: list[str]) -> Iterator[Confound]:
    if len(varied) > 1:
        yield Confound("more than one thing differs between the launches", ", ".join(varied)[:400], refuses=True)
    elif varied:
        yield Confound("what differs between the launches", varied[0], refuses=False)
    if ours.plan.recipe != theirs.plan.recipe:
        yield Confound("the recipes differ", f"{ours.plan.recipe} and {theirs.plan.recipe}", refuses=True)
    for field, what in _MEASURED_ALIKE.items():
        a, b = (getattr(side.design, field) if side.design else None for side in (ours, theirs))
        if ours.design and theirs.design and a != b:
            yield Confound(what, f"{a} and {b}", refuses=True)
    if not (ours.design and theirs.design):
        kinds = [sorted({done.kind for boot in side.boots for done in boot.requests}) for side in (ours, theirs)]
        if kinds[0] != kinds[1]:
            names = " and ".join(", ".join(of_side) or "none" for of_side in kinds)
            yield Confound("the prompts differ", names[:400], refuses=True)
        yield Confound("not recorded for a single run", _UNRECORDED, refuses=False)


def compare_plans(ours: Plan, theirs: Plan) -> list[str]:
    """Return the differences of two plans by name, each listed once."""
    differing = [label for name, label in _PARTS.items() if getattr(ours, name) != getattr(theirs, name)]
    # These flags and variables follow from a field that is listed already.
    follow = {"--enforce-eager": "mode", "--speculative-config": "n"}
    follow |= {"VLLM_ENABLE_STARTUP_PLAN": "mode", "VLLM_CACHE_ROOT": "engine"}
    if Mode.GRAPHS in {ours.mode, theirs.mode}:
        follow |= dict.fromkeys(cuda_graphs.OPTIONS, "mode")
    flags = [parse_argv_options(plan.argv) for plan in (ours, theirs)]
    names = sorted(name for name in {*flags[0], *flags[1]} if flags[0].get(name) != flags[1].get(name))
    differing += [name for name in names if follow.get(name) not in differing]
    variables = sorted(name for name in {*ours.env, *theirs.env} if ours.env.get(name) != theirs.env.get(name))
    differing += [f"env.{name}" for name in variables if follow.get(name) not in differing]
    return differing + [f"patch.{name}" for name in sorted(set(ours.patches) ^ set(theirs.patches))]
