"""The text of plans, published figures and checks, for the panel and the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dflash_tui.benchmark.prompts import name_sampling
from dflash_tui.common.formatting import (
    UNKNOWN,
    fold_line,
    format_duration,
    format_gib,
    format_megabytes,
    format_synthetic,
    pluralize,
)
from dflash_tui.engines import inventory
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine.hardware import Hardware
from dflash_tui.monitoring import startup_history
from dflash_tui.planning import cuda_graphs, patch_selection, startup_optimizations
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import Plan, format_command
from dflash_tui.planning.recipes.recipe import Mode, RestartPolicy, SetUp
from dflash_tui.planning.recipes.resolution import ExpectedFigures, ResolvedRecipe
from dflash_tui.planning.startup_optimizations import StartupOptimization

if TYPE_CHECKING:  # importing pynvml and httpx takes 280 ms, which would delay the panel's first paint
    from dflash_tui.launch.preflight.check import Check
    from dflash_tui.launch.preflight.runner import PreflightReport
    from dflash_tui.monitoring.startup_history import MedianSeconds

# Measured with vLLM 0.26.0, random weights in the shape of Gemma 4 26B-A4B, one stream, 15 tokens per step.
_GRAPHS_ELSEWHERE = "CUDA graphs without compiling; 4.4 times eager's and 0.9 of compile's tok/s on an H200"
# The kernel of that model's global layers at 8192 tokens of context: microseconds per layer and step.
_SPLIT_KERNEL = "87 instead of 692 µs per wide layer and step after 8k of context on an H200, the kernel alone"
MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}
# The values of NCCL_DEBUG with which NCCL logs its transport.
_TELLING = frozenset({"INFO", "TRACE"})


def summarize_plan(planned: PlannedLaunch, width: int = 0) -> str:
    """Return the summary of a plan, one row per fact, then its warnings.

    Rows are folded to `width` columns, 110 at most; 0 is without a limit.
    """
    return "\n".join(_fold_rows([*_list_summary(planned), *_list_warnings(planned.plan)], min(width, 110)))


def describe_plan(planned: PlannedLaunch, width: int = 0) -> str:
    """Return the whole plan: its summary, models, engine, patches, published figures and command.

    Lines are folded to `width` columns (0: no limit), except the command, so that it can be copied.
    """
    plan, resolved = planned.plan, planned.resolved
    rows = [
        *_list_summary(planned),
        *_list_choice(planned),
        ("target", describe_model(plan.target, resolved.target.quantization, resolved.target.licence)),
        ("drafter", _describe_drafting(resolved, plan)),
        ("mode", f"{plan.mode.value}{': ' + why if (why := resolved.modes.get(plan.mode)) else ''}"),
        *(("", offer) for offer in (format_graphs_offer(resolved, plan), format_drafts_offer(resolved, plan)) if offer),
        ("engine", f"{resolved.engine.distribution} {plan.vllm}"),
        *_list_patches(plan),
        *_list_start(planned),
        *(("expected", text) for text in map(format_published, plan.expected) if text != _summarize_speed(plan)),
        *([("restart", restart)] if (restart := format_restart(plan.restart)) else []),
        *(("differs", f"{name}: {why}") for name, why in plan.deviations.items()),
        *_list_warnings(plan),
    ]
    command = [f"  {line}" for line in format_command(plan).splitlines()]
    return "\n".join([*_fold_rows(rows, width), "command", *command])


def _fold_rows(rows: Iterable[tuple[str, str]], width: int) -> list[str]:
    return [fold_line(f"{label:<8} {value}".rstrip(), width, hang=9) for label, value in rows]


def _list_summary(planned: PlannedLaunch) -> list[tuple[str, str]]:
    resolved, plan = planned.resolved, planned.plan
    names = [plan.recipe, f"profile {plan.profile}" if resolved.recipe.profiles else "", plan.variant]
    kind = "" if plan.on_cpu else f" on {_name_hardware(planned)}"
    head = ("recipe", f"{', '.join(filter(None, names))}{kind}: {plan.title}")
    return [head, *list_plan_rows(planned, startup_history.estimate_ready(plan))]


def _list_warnings(plan: Plan) -> list[tuple[str, str]]:
    note = [("note", format_synthetic(plan.synthetic))] if plan.synthetic else []
    return [*note, *(("warning", warning) for warning in plan.warnings)]


def list_plan_rows(planned: PlannedLaunch, before: MedianSeconds | None) -> list[tuple[str, str]]:
    """Return labelled rows: memory, downloads, speed, time to ready, context and port."""
    return [
        *([] if planned.plan.on_cpu else [("fits", _summarize_memory(planned))]),
        ("fetch", _summarize_downloads(planned)),
        ("speed", _summarize_speed(planned.plan)),
        ("ready", format_time_to_ready(planned.plan, before) or "not known before its first start"),
        ("context", _summarize_context(planned)),
        ("port", str(planned.plan.port)),
        *([("set-up", words)] if (words := format_set_up(planned)) else []),
    ]


def _name_hardware(planned: PlannedLaunch) -> str:
    kind = "any GPU" if planned.plan.hardware is Hardware.UNKNOWN else planned.plan.hardware.value
    here = ", ".join(f"GPU {card.index} {card.name}" for card in planned.gpus) or "not in this machine"
    return f"{kind} ({here})"


def _summarize_memory(planned: PlannedLaunch) -> str:
    fit = planned.memory
    if fit is None:
        return f"unknown: GPUs of class {planned.plan.hardware.value} differ in memory, and none is here"
    if not fit.knows_weights:
        return "unknown: the size of the weights is not known"
    kind = ("unified memory" if fit.unified else "GPU memory") + _name_each(planned)
    whole = f"{format_gib(fit.fixed + (fit.kv_needed or 0))} of {format_gib(fit.total)} {kind}"
    if fit.kv_left <= 0 or not fit.holds_request:
        return f"no: it needs ≈ {whole}, and vLLM may take {format_gib(fit.budget)}"
    many = f", the KV cache holds {fit.requests:.1f} such requests" if fit.requests else ""
    return f"yes: ≈ {whole} with one request of {fit.max_model_len or UNKNOWN} tokens{many}"


def _summarize_downloads(planned: PlannedLaunch) -> str:
    from dflash_tui.engines import model_hub

    plan, engine, build = planned.plan, planned.resolved.engine, planned.resolved.recipe.build
    parts: list[tuple[str, int | None, int | None]] = []
    if inventory.find_planned_engine(plan) is None:
        parts.append((f"{engine.distribution} {engine.vllm}", engine.download_mb, engine.disk_mb))
    if build and not Path(plan.models_folder).is_dir():
        parts.append(("models", build.download_mb, build.size_mb))
    for model in plan.models:
        local = model_hub.find_local_model(model.name, model.revision)
        if not (local and local.complete):
            size = None if model.size_gb is None else round(model.size_gb * 1000)
            parts.append((model.name.rpartition("/")[2], size, size))
    if not parts:
        return "nothing: engine and models are here"
    least = "≥ " if any(size is None for _, size, _disk in parts) else ""
    named = ", ".join(f"{name} {UNKNOWN if size is None else format_megabytes(size)}" for name, size, _disk in parts)
    download = format_megabytes(sum(size or 0 for _, size, _disk in parts))
    disk = format_megabytes(sum(size or 0 for _, _download, size in parts))
    each = _name_each(planned) if plan.ranks else ""
    return f"{least}{download} to download{each} ({named}), {least}{disk} on disk"


def _name_each(planned: PlannedLaunch) -> str:
    """Return ` on each of N hosts` or GPUs, the unit of a figure; empty for one GPU."""
    if planned.plan.ranks:
        return f" on each of {len(planned.plan.ranks) + 1} hosts"
    count = planned.resolved.flags.get("tensor-parallel-size", 1)
    return "" if count == 1 else f" on each of {count} GPUs"


def _summarize_speed(plan: Plan) -> str:
    for band in plan.expected:
        if band.tok_s and not band.set_up:
            return format_published(band)
    others = ", only for others" if plan.expected else ""
    return f"not published for this set-up{'' if plan.on_cpu else f' on {plan.hardware.value}'}{others}"


def _summarize_context(planned: PlannedLaunch) -> str:
    longest = planned.memory.max_model_len if planned.memory else planned.resolved.flags.get("max-model-len")
    return f"{longest} tokens" if longest else "as long as the model's"


def _list_choice(planned: PlannedLaunch) -> Iterator[tuple[str, str]]:
    resolved, plan = planned.resolved, planned.plan
    if resolved.recipe.profiles:
        yield "profile", f"{plan.profile}: {resolved.recipe.profiles[plan.profile].title}"
    if plan.variant:
        yield "variant", f"{plan.variant}: {resolved.recipe.variants[plan.variant].title}"
    yield "status", f"{resolved.standing.status.value}: {resolved.standing.why.strip()}"


def _list_patches(plan: Plan) -> Iterator[tuple[str, str]]:
    yield "patches", ", ".join(plan.patches) or "none"
    yield from (("", f"{name}: not needed, {why}") for name, why in plan.skipped_patches.items())
    yield from (("", f"{name}: disabled by --set") for name in plan.disabled_patches)


def _list_start(planned: PlannedLaunch) -> Iterator[tuple[str, str]]:
    resolved, plan = planned.resolved, planned.plan
    far = [f"{rank.host}: {text}" for rank in plan.ranks for text in rank.models]
    yield from (("" if number else "models", line) for number, line in enumerate(far))
    if plan.cluster and not plan.on_cpu:
        level = plan.env.get("NCCL_DEBUG", "not set")
        words = "says in each rank's log" if level.upper() in _TELLING else "does not say"
        yield "link", f"NCCL {words} whether it uses RoCE or sockets: NCCL_DEBUG is {level}"
    yield from (("" if place else "start", line) for place, line in enumerate(list_start_measures(resolved, plan)))
    if planned.memory:
        yield "memory", format_memory(planned.memory)


def describe_model(name: str, *facts: str) -> str:
    """Return the name of a model with facts in brackets, such as quantization and licence."""
    details = ", ".join(filter(None, facts))
    return f"{name} ({details})" if details else name


def _describe_drafting(resolved: ResolvedRecipe, plan: Plan) -> str:
    if not plan.num_speculative_tokens:
        return "none: the baseline without speculation"
    method = [] if plan.method is Method.DFLASH and plan.drafter else [plan.method.value]
    drafter = describe_model(plan.drafter, resolved.drafter.licence) if plan.drafter and resolved.drafter else ""
    return ", ".join(filter(None, [drafter, *method, f"{plan.num_speculative_tokens} tokens per step"]))


def format_graphs_offer(resolved: ResolvedRecipe, plan: Plan) -> str:
    """Return a suggestion to try graphs mode; empty if the plan uses it or cannot."""
    if not cuda_graphs.is_choice(resolved, plan.mode, plan.num_speculative_tokens):
        return ""
    advice = resolved.modes.get(Mode.GRAPHS, _GRAPHS_ELSEWHERE)
    unmeasured = "" if cuda_graphs.is_measured(resolved) else f"; not measured on {plan.hardware.value}"
    return f"try --mode graphs: {advice}{unmeasured}"


def list_start_measures(resolved: ResolvedRecipe, plan: Plan) -> list[str]:
    """Return a line for each startup optimization: used, left out and why, or available."""
    used = [startup_optimizations.OPTIMIZATIONS[name] for name in plan.start]
    lines = [f"{measure.name}: {measure.does}{_format_gain(measure)}" for measure in used]
    lines += [f"without {name}: {why}" for name, why in plan.start_left_out.items()]
    offers = startup_optimizations.list_offers(resolved, plan.start)
    return lines + [f"try --set start.{measure.name}=true: {measure.does}{_format_gain(measure)}" for measure in offers]


def _format_gain(measure: StartupOptimization) -> str:
    gain = f"{measure.saves} ({measure.source})" if measure.saves else ""
    since = f"from {measure.since} on" if measure.since else ""
    risk = f"risk: {measure.risk}" if measure.risk else ""
    return "".join(f"; {part}" for part in (gain, since, risk) if part)


def format_set_up(planned: PlannedLaunch) -> str:
    """Return the planned set-up and the gain of the fast one; empty if there is no fast one."""
    plan, fast = planned.plan, planned.fast
    if fast is None:
        return ""
    split = f"split verification ({fast.gain} × the tok/s after 2k to 32k on an H200)"
    compared = "" if fast.is_compared else f"; answers not compared on {plan.hardware.value} with vLLM {plan.vllm}"
    if plan.set_up is SetUp.FAST:
        return f"fast: {plan.mode.value} with {split}{compared}; --published for the other"
    return f"published; --fast: {split}{compared}"


def format_drafts_offer(resolved: ResolvedRecipe, plan: Plan) -> str:
    """Return a suggestion of fewer drafted tokens, which Triton attention can split; else ""."""
    most = patch_selection.find_most_split_drafts(resolved, plan.num_speculative_tokens, plan.patches)
    if not most:
        return ""
    tokens = plan.num_speculative_tokens
    return (
        f"try --set n={most}: Triton attention of vLLM {plan.vllm} splits a long context for steps of up to {most + 1} "
        f"tokens, and n={tokens} has {tokens + 1} (vllm#48076): {_SPLIT_KERNEL}; no server was measured on "
        f"{plan.hardware.value}; or --set patches.{patch_selection.PATCH}=true"
    )


def format_memory(fit: MemoryEstimate) -> str:
    """Return the memory estimate in one line; unknown parts are named."""
    parts = [f"{share.name} {'≥ ' if share.least else ''}{format_gib(share.size)}" for share in fit.shares]
    parts.append(f"KV for {fit.max_model_len or UNKNOWN} tokens {format_gib(fit.kv_needed)}")
    kind = "unified memory" if fit.unified else "GPU memory"
    short = ""
    if fit.kv_left <= 0:
        short = f"; does not fit: {format_gib(-fit.kv_left)} too little before any KV cache"
    elif not fit.holds_request:
        short = f"; does not fit: {format_gib(fit.kv_left)} are left for the KV cache"
    elif not fit.knows_weights:
        short = "; whether it fits is unknown without the size of the weights"
    return f"≈ {', '.join(parts)}; {format_gib(fit.budget)} of {format_gib(fit.total)} {kind} taken{short}"


def format_time_to_ready(plan: Plan, before: MedianSeconds | None) -> str:
    """Return the expected time to ready, from earlier runs here or else as published; empty if unknown."""
    if before:
        often = "the last time" if before.n == 1 else f"the last {before.n} times (median)"
        return f"after about {format_duration(before.seconds)}, as {often} here"
    bands = [band for band in plan.expected if band.ready_s and not band.set_up]
    if not bands or not bands[0].ready_s:
        return ""
    low, high = (format_duration(seconds) for seconds in bands[0].ready_s)
    return f"after {low if low == high else f'{low} to {high}'} elsewhere ({bands[0].source})"


def format_restart(policy: RestartPolicy) -> str:
    """Return how often a server that exits is restarted, and by which command; empty if never."""
    if not policy.times:
        return ""
    return f"after a crash, {format_restart_limit(policy)}, by `up` and the panel while they watch it, and by `service`"


def format_restart_limit(policy: RestartPolicy) -> str:
    """Return the limit on restarts."""
    return f"at most {pluralize(policy.times, 'time')} within {format_duration(policy.within_s)}"


def format_published(band: ExpectedFigures) -> str:
    """Return published figures in one line, with their source and, if it differs, their set-up."""
    of = f"{band.mode.value}: " if band.mode else ""
    of = f"published for {band.set_up}: " if band.set_up else of
    figures = [
        f"{name} {_range(values, scale, unit)}"
        for name, values, scale, unit in (
            ("tok/s", band.tok_s, 1, ""),
            ("without speculation", band.baseline_tok_s, 1, ""),
            ("acceptance", band.acceptance, 100, " %"),
            ("AL", band.acceptance_length, 1, ""),
            ("ready after", band.ready_s, 1, " s"),
        )
        if values
    ]
    conditions = (
        band.source,
        band.date,
        f"vLLM {band.vllm}" if band.vllm else "",
        f"{band.tokens} tokens per step" if band.tokens and not band.set_up else "",
        name_sampling(band.temperature, band.top_p, band.top_k),
        f"prompts of {band.depth} tokens" if band.depth else "",
        f"{band.streams} streams" if band.streams else "",
        pluralize(band.runs, "run") if band.runs else "",
    )
    remark = f"; {band.note}" if band.note else ""
    return f"{of}{', '.join(figures)} ({', '.join(filter(None, conditions))}){remark}"


def _range(values: tuple[float, ...], scale: float, unit: str) -> str:
    low, high = (f"{value * scale:.4g}" for value in values)
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def format_check(check: Check, width: int = 0) -> str:
    """Return a check in one line, or two with its fix, each folded to `width` columns (0: no limit)."""
    finding = fold_line(f"{MARKS[check.level.value]} {check.name}: {check.finding}", width, hang=2)
    fix = fold_line(f"{'':4}→ {check.fix}", width, hang=6) if check.fix and check.level.value != "ok" else ""
    return "\n".join(filter(None, [finding, fix]))


def format_verdict(report: PreflightReport) -> str:
    """Return the result of all checks in one sentence."""
    warnings = sum(check.level.value == "warn" for check in report.checks)
    noted = f", {pluralize(warnings, 'warning')}" if warnings else ""
    if failed := len(report.failed):
        return f"{failed} of {len(report.checks)} checks failed{noted}: it would not start"
    return f"{len(report.checks)} checks, none failed{noted}"
