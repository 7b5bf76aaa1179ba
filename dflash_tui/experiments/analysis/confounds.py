"""Confounds: differences other than the varied setting that may explain a result. Pure.

The arms' plans differ in the varied setting. So each boot is compared with the plan of its own arm, and boots of
different arms with each other only where the plans agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from dflash_tui.benchmark.prompts import TokenVariety
from dflash_tui.benchmark.server import TokenCount
from dflash_tui.common.formatting import pluralize
from dflash_tui.common.secrets import LEFT_OUT, is_secret
from dflash_tui.events import Phase
from dflash_tui.experiments.analysis.measures import TOKENS, measure_request, select_measured_boots
from dflash_tui.experiments.analysis.report import Confound
from dflash_tui.experiments.design import Arm, Boot, Conditions, Design

# Set for each boot at launch: its cache folders and a free port.
_OWN_ENV = frozenset({
    "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_HOME",
    "FLASHINFER_WORKSPACE_BASE", "FLASHINFER_CUBIN_DIR", "CUDA_CACHE_PATH", "DG_JIT_CACHE_DIR", "TILELANG_CACHE_DIR",
    "XDG_CACHE_HOME", "VLLM_PORT", "TMPDIR",
})  # fmt: skip
_OWN_OPTIONS = frozenset({"--port"})
_WITHOUT_SPEED = "; an answer that came in one piece has no speed, --scale 4 asks for longer ones"
# Percentage points of prefix hits: a cached prefix costs no prefill, and the drafter has not processed it.
_PREFIX_POINTS = 3.0
# Tolerated relative difference of answer lengths: for fixed lengths, and for answers that the model ends.
_LENGTH, _FREE_LENGTH = 0.02, 0.1
# Measured on two cores: arms with equal drafting differed by a factor of 2.6 while other processes used 0.8 and 1.1
# cores.
_BUSY = 0.5
_THROTTLES = frozenset({"power brake", "thermal (hardware)", "thermal (software)", "hardware slowdown"})
# A cold GPU is about 4 % faster (club-3090's bench.sh); clocks of two boots may differ by 5 % anyway.
_CLOCK, _CELSIUS, _LOAD, _OTHERS = 0.05, 15, 2.0, 0.5
# A GPU at its power limit is as fast as the limit allows; laptops change the limit themselves, also between boots.
_WATTS = 1.05
_SECONDS, _START = 2.0, 0.1
# The server's counters may be one step behind the answers.
_STRANGE, _TOKENS = 0.02, 64
_LONGEST = 200


class _ArmPair(NamedTuple):
    design: Design
    arms: tuple[Arm, Arm]
    boots: tuple[Sequence[Boot], Sequence[Boot]]
    """The boots of each arm that measured something."""
    failed: tuple[Sequence[Boot], Sequence[Boot]]
    measure: str

    @property
    def measured(self) -> list[Boot]:
        return sorted((*self.boots[0], *self.boots[1]), key=lambda boot: boot.number)

    def arm(self, boot: Boot) -> Arm:
        return self.design.arms[boot.arm]


def find_confounds(
    design: Design, boots: Sequence[Boot], a: int, b: int, measure: str = TOKENS
) -> tuple[Confound, ...]:
    """Return the confounds of two arms, those that refuse a verdict first."""
    pair = _ArmPair(
        design,
        (design.arms[a], design.arms[b]),
        (select_measured_boots(boots, a), select_measured_boots(boots, b)),
        (_select_failed_boots(boots, a), _select_failed_boots(boots, b)),
        measure,
    )
    confounds = [confound for rule in _RULES for confound in rule(pair)]
    return tuple(sorted(confounds, key=lambda confound: not confound.refuses))


def _select_failed_boots(boots: Sequence[Boot], arm: int) -> list[Boot]:
    return [boot for boot in boots if boot.arm == arm and boot.error]


def _failed_boots(pair: _ArmPair) -> Iterator[Confound]:
    for arm, boots, failed in zip(pair.arms, pair.boots, pair.failed, strict=True):
        error = failed[0].error[:_LONGEST] if failed else ""
        if not boots:
            yield Confound(f"no boot of {arm.name} measured anything", error, refuses=True)
        elif failed:
            yield Confound(f"a boot of {arm.name} failed", f"{pluralize(len(failed), 'attempt')}: {error}", False)


def _unequal_limits(pair: _ArmPair) -> Iterator[Confound]:
    sent = max(pair.design.concurrency)
    waits = [arm for arm in pair.arms if arm.plan.most_requests is not None and arm.plan.most_requests < sent]
    if len(waits) == 1 and pair.design.vary != "max-num-seqs":
        evidence = f"{waits[0].name} takes {waits[0].plan.most_requests} at once, and {sent} are sent"
        yield Confound("requests wait in one arm", evidence, refuses=False)


def _running_servers(pair: _ArmPair) -> Iterator[Confound]:
    """Find what a running server does not show of itself, and that its turns are no boots."""
    names = [{arm.plan.target, arm.plan.served_name} - {""} for arm in pair.arms]
    if any(arm.server for arm in pair.arms) and not names[0] & names[1]:
        evidence = " and ".join(arm.plan.target or arm.plan.served_name for arm in pair.arms)
        yield Confound("the arms name different models", evidence, refuses=False)
    for place, arm in enumerate(pair.arms):
        if arm.server is None:
            continue
        if arm.server.facts.tokens is TokenCount.CHUNKS:
            evidence = "it reports no usage: the chunks of its stream were counted, which may hold several tokens"
            yield Confound(f"the tokens of {arm.name} are unknown", evidence, refuses=True)
        if len({boot.process for boot in pair.boots[place]}) == 1:
            turns = pluralize(len(pair.boots[place]), "turn")
            evidence = f"{turns} at it count as one boot, and the verdict is suggestive at most"
            yield Confound(f"{arm.name} was running already and was not started again", evidence, refuses=False)


def _launch_differences(pair: _ArmPair) -> Iterator[Confound]:
    """Find flags and variables that differ from the arm's plan, or between boots."""
    varied = _OWN_ENV.union(*(arm.plan.env for arm in pair.arms))
    for boot in pair.measured:
        plan = pair.arm(boot).plan
        if boot.argv:
            wrong = _list_changes(parse_argv_options(plan.argv), parse_argv_options(boot.argv))
            yield from _refuse("other flags than its arm's", boot, wrong)
        planned = {name: value for name, value in plan.env.items() if name not in _OWN_ENV}
        actual = {name: boot.env[name] for name in planned if name in boot.env}
        yield from _refuse("other variables than its arm's", boot, _list_changes(planned, actual))
    variables = {b.number: _leave_out(b.env, varied) for b in pair.measured}
    yield from _find_unequal_values("variables differ between boots", variables)
    around = {b.number: _leave_out(b.inherited, varied) for b in pair.measured if b.inherited is not None}
    yield from _find_unequal_values("they were launched from different shell environments", around)


def _software_differences(pair: _ArmPair) -> Iterator[Confound]:
    ours, theirs = (arm.plan for arm in pair.arms)
    running, varied = any(arm.server for arm in pair.arms), set(ours.patches) ^ set(theirs.patches)
    same_engine = ours.unpatched_folder == theirs.unpatched_folder and not running
    for boots in [pair.measured] if same_engine else pair.boots:
        yield from _find_unequal_values("versions differ", {b.number: b.versions for b in boots if b.versions})
        yield from _find_unequal_values("engines differ", {b.number: {"engine": b.engine} for b in boots if b.engine})
    # The digest of a patch covers whole files, which another patch may change too.
    for boots in [pair.measured] if same_engine and not varied else pair.boots:
        # For a run outside of experiments only the names of the patches are recorded.
        named = {name for boot in boots for name, sha in boot.patches.items() if not sha}
        patches = {
            b.number: {name: "in" if name in named else sha[:12] for name, sha in _leave_out(b.patches, varied).items()}
            for b in boots
        }
        yield from _find_unequal_values("patches differ", patches)
    for boot in pair.measured:
        planned = pair.arm(boot).plan.patches
        wrong = [f"without {name}" for name in planned if name not in boot.patches]
        wrong += [f"with {name}" for name in sorted(varied - set(planned)) if name in boot.patches]
        yield from _refuse("other patches than its arm's", boot, wrong)
    for boots in [pair.measured] if ours.gpus == theirs.gpus else pair.boots:
        cards = {b.number: {"GPU": ", ".join(b.gpus)} for b in boots if b.gpus}
        yield from _find_unequal_values("the GPU differs", cards)
    # Boots of earlier releases sent a seed and did not record their sampler.
    if pair.design.temperature != 0 and any(boot.sampler for boot in pair.measured):
        samplers = {b.number: {"sampler": b.sampler} for b in pair.measured if b.inherited is not None}
        yield from _find_unequal_values("the samplers differ", samplers)
    texts = {
        b.number: {"prompts": "random tokens" if b.token_variety is TokenVariety.RANDOM else "the suite's text"}
        for b in pair.measured
    }
    yield from _find_unequal_values("the prompts differ", texts)
    drivers = {b.number: {"driver": b.driver} for b in pair.measured if b.driver}
    yield from _find_unequal_values("the driver differs", drivers)


def _request_faults(pair: _ArmPair) -> Iterator[Confound]:
    whole = {"", "length"} if pair.design.fixed else {"", "length", "stop", "tool_calls"}
    for boot in pair.measured:
        if failed := [request for request in boot.requests if request.error]:
            evidence = f"{pluralize(len(failed), 'request')}, first {failed[0].error[:_LONGEST]}"
            yield _of_boot(boot, "requests failed", evidence)
        if boot.cold_request and boot.cold_request.error:
            yield _of_boot(boot, "the first request failed", boot.cold_request.error[:_LONGEST], refuses=False)
        if short := [request for request in boot.requests if not request.error and request.finish not in whole]:
            evidence = f"{pluralize(len(short), 'answer')} of {len(boot.requests)} ended by themselves"
            yield _of_boot(boot, "answers did not have the requested length", f"{evidence} ({short[0].kind})")
        if failures := sum(window.filler_failures for window in boot.windows):
            evidence = f"{pluralize(failures, 'request')} that are not counted failed"
            yield _of_boot(boot, "not every boot sustained its load", evidence)
        if boot.preemptions:
            # Of a map they are those of its largest cells only.
            evidence = pluralize(round(boot.preemptions), "preemption")
            yield _of_boot(boot, "requests were preempted", evidence, refuses=not pair.design.by_kind)
    lengths = [_mean_lengths(boots) for boots in pair.boots]
    for cell in [cell for cell in lengths[0] if cell in lengths[1]]:
        ours, theirs = lengths[0][cell], lengths[1][cell]
        if abs(ours - theirs) > (_LENGTH if pair.design.fixed else _FREE_LENGTH) * max(ours, theirs):
            evidence = f"{cell[0]}: {ours:.0f} and {theirs:.0f} tokens"
            yield Confound("answers differ in length", evidence, refuses=False)
    shares = {b.number: 100 * b.prefix_hits / b.prefix_queries for b in pair.measured if b.prefix_queries}
    if shares and not pair.design.repeats and max(shares.values()) - min(shares.values()) > _PREFIX_POINTS:
        evidence = ", ".join(f"boot {number + 1}: {share:.0f} %" for number, share in shares.items())
        yield Confound("the share of prefix hits differed between boots", evidence, refuses=True)


def _broken_calls(pair: _ArmPair) -> Iterator[Confound]:
    for boot in pair.measured:
        if broken := sum(request.broken_calls for request in boot.requests):
            evidence = f"{broken} of {pluralize(sum(request.calls for request in boot.requests), 'call')}"
            yield _of_boot(boot, "tool calls do not parse", evidence, refuses=False)


def _mean_lengths(boots: Sequence[Boot]) -> dict[tuple[str, int], float]:
    lengths: dict[tuple[str, int], list[int]] = {}
    for request in (request for boot in boots for request in boot.requests if request.tokens):
        lengths.setdefault((request.kind, request.streams), []).append(request.tokens)
    return {cell: sum(tokens) / len(tokens) for cell, tokens in lengths.items()}


def _unknown_figures(pair: _ArmPair) -> Iterator[Confound]:
    """Find requests without the judged measure; prompts left without any refuse a verdict."""
    evidence_by_loss: dict[bool, list[str]] = {True: [], False: []}
    for boot in pair.measured:
        answered = [request for request in boot.requests if not request.error]
        unknown = [request for request in answered if not measure_request(request, pair.measure)]
        known = {(r.kind, r.streams) for r in answered if measure_request(r, pair.measure)}
        if unknown:
            lost = any(request.tokens > 1 and (request.kind, request.streams) not in known for request in unknown)
            kinds = ", ".join(dict.fromkeys(request.kind for request in unknown))
            count = f"{len(unknown)} of {pluralize(len(answered), 'request')}"
            evidence_by_loss[lost].append(f"boot {boot.number + 1}: {count} ({kinds})")
    for lost, evidence in evidence_by_loss.items():
        if evidence:
            why = _WITHOUT_SPEED if pair.measure == TOKENS else ""
            what = f"requests without a figure in {pair.measure}"
            # A cell of a map has other prompts.
            yield Confound(what, "; ".join(evidence)[:_LONGEST] + why, refuses=lost and not pair.design.by_kind)


def _busy_processors(pair: _ArmPair) -> Iterator[Confound]:
    """Find other CPU load during boots of a CPU server; with one boot each it refuses a verdict."""
    busy = {boot.number: boot.others for boot in pair.measured if boot.others is not None and boot.others > _BUSY}
    if busy and any(arm.plan.on_cpu for arm in pair.arms):
        evidence = ", ".join(f"boot {number + 1}: {count:.1f} cores" for number, count in busy.items())
        alone = any(len(boots) < 2 for boots in pair.boots)
        yield Confound("other processes kept the server's processors busy", evidence, refuses=alone)


def _doubtful_meaning(pair: _ArmPair) -> Iterator[Confound]:
    if pair.design.synthetic:
        yield Confound("no real model", pair.design.synthetic, refuses=False)
    for boot in pair.measured:
        if boot.doubt:
            yield _of_boot(boot, "the ranks may have different weights", boot.doubt[: 2 * _LONGEST], refuses=False)


def _unknowns(pair: _ArmPair) -> Iterator[Confound]:
    """Find what was not recorded of a boot, since the other rules are silent about it."""
    power = any(boot.after and boot.after.power for boot in pair.measured)
    lacking: dict[str, list[int]] = {}
    for boot in pair.measured:
        after, on_gpu = boot.after or Conditions(0.0), not pair.arm(boot).plan.on_cpu
        lacks = {
            "throttling": on_gpu and after.throttle is None,
            "other load on the GPU": on_gpu and after.foreign is None,
            "the power supply": power and not after.power,
            "the server's counters meanwhile": boot.generated is None,
        }
        if any(lacks.values()):
            lacking.setdefault(", ".join(what for what, is_so in lacks.items() if is_so), []).append(boot.number)
    if lacking:
        all_ = len(pair.measured)
        names = [(_name_boots(on) if len(on) < all_ else "every boot", what) for what, on in lacking.items()]
        yield Confound("not known", "; ".join(f"{boots}: {what}" for boots, what in names), refuses=False)


def _foreign_requests(pair: _ArmPair) -> Iterator[Confound]:
    """Find tokens that the server generated for other clients."""
    for boot in pair.measured:
        ours = sum(done.tokens for done in boot.requests) + sum(window.filler_tokens for window in boot.windows)
        strange = (boot.generated or 0.0) - ours
        # For a cancelled filler the server has generated more tokens than arrived.
        unseen = _TOKENS * sum(window.streams for window in boot.windows if window.filler_tokens)
        if strange > max(_TOKENS, _STRANGE * ours) + unseen and not any(done.error for done in boot.requests):
            evidence = f"{strange:.0f} tokens beside our {ours}"
            yield _of_boot(boot, "other clients sent requests to the server", evidence)


def _machine_state(pair: _ArmPair) -> Iterator[Confound]:
    on_battery, limits = list[str](), {}
    for boot in pair.measured:
        ends = [end for end in (boot.before, boot.after) if end]
        readings = [*ends, *(far for end in ends for far in end.hosts.values())]
        throttles = sorted({why for reading in readings for why in reading.throttle or ()})
        if any(reading.throttle is not None for reading in readings):
            limits[boot.number] = {"reported": ", ".join(why for why in throttles if why not in _THROTTLES)}
        if hard := [why for why in throttles if why in _THROTTLES]:
            yield _of_boot(boot, "the GPU was throttled", ", ".join(hard))
        if foreign := sorted({who for reading in readings for who in reading.foreign or ()}):
            beside = any(arm.server and arm.server.is_here for arm in pair.arms)  # it is one of these
            what = f"other processes used the {'processors' if pair.arm(boot).plan.on_cpu else 'GPU'}"
            yield _of_boot(boot, what, ", ".join(foreign)[:_LONGEST], refuses=not beside)
        on_battery += [f"boot {boot.number + 1}"] * any(reading.power == "battery" for reading in readings)
    if on_battery:
        yield Confound("the machine ran on its battery", ", ".join(on_battery), refuses=True)
    for confound in _find_unequal_values("the driver reported a limit of the GPU's clocks in some boots only", limits):
        yield Confound(confound.what, confound.evidence.removeprefix("reported: "), refuses=False)


def _power_limits(pair: _ArmPair) -> Iterator[Confound]:
    """Find power limits that differ on equal numbers of GPUs; between arms they refuse a verdict."""
    arms = [[boot.after.power_limit_w for boot in boots if boot.after and boot.after.power_limit_w]
            for boots in pair.boots]  # fmt: skip
    limits = {b.number: b.after.power_limit_w for b in pair.measured if b.after and b.after.power_limit_w}
    cards = {boot.after.cards for boot in pair.measured if boot.after}
    if limits and len(cards) == 1 and max(limits.values()) > _WATTS * min(limits.values()):
        apart = all(arms) and max(map(min, arms)) > _WATTS * min(map(max, arms))
        what = "the GPU had another power limit in each arm" if apart else "the GPU's power limit changed between boots"
        yield Confound(what, _list_by_boot(limits, "W"), refuses=apart)


def _drifts(pair: _ArmPair) -> Iterator[Confound]:
    boots = pair.measured
    ends = {boot.number: boot.after for boot in boots if boot.after}
    # The load before the first boot includes none of ours; the one-minute load before any other includes the boot
    # before.
    begins = {boot.number: boot.before for boot in boots if boot.before and boot.number}
    clocks = {number: reading.clock_mhz for number, reading in ends.items() if reading.clock_mhz}
    degrees = {number: reading.temperature_c for number, reading in ends.items() if reading.temperature_c is not None}
    loads = {number: round(reading.load, 1) for number, reading in begins.items() if reading.load is not None}
    others = {boot.number: round(boot.others, 1) for boot in boots if boot.others is not None}
    loading = {
        boot.number: round(boot.phases[Phase.WEIGHTS] + boot.phases.get(Phase.DRAFTER, 0.0), 1)
        for boot in boots
        if Phase.WEIGHTS in boot.phases
    }
    shortest = min((boot.ready for boot in boots if boot.ready), default=0.0)
    for what, values, bound, unit in (
        ("the GPU's clock differed between boots", clocks, _CLOCK * max(clocks.values(), default=0), "MHz"),
        ("the GPU's temperature differed between boots", degrees, _CELSIUS, "°C"),
        ("other processes kept CPU cores busy unequally", others, _OTHERS, "cores"),
        ("the machine's load differed between boots", loads, _LOAD, "on average over a minute"),
        ("the weights were not loaded equally fast at each start", loading, max(_SECONDS, _START * shortest), "s"),
    ):
        if values and max(values.values()) - min(values.values()) > bound:
            yield Confound(what, _list_by_boot(values, unit), refuses=False)


_RULES = (
    _failed_boots, _running_servers, _unequal_limits, _launch_differences, _software_differences, _request_faults,
    _broken_calls, _unknown_figures, _busy_processors, _doubtful_meaning, _unknowns, _foreign_requests, _machine_state,
    _power_limits, _drifts,
)  # fmt: skip


def parse_argv_options(argv: Sequence[str]) -> dict[str, str]:
    """Return the options of a command with their values, without the path of the program."""
    options: dict[str, str] = {"model": " ".join(word for word in argv[1:3] if not word.startswith("--"))}
    name = ""
    for word in argv[3:]:
        if word.startswith("--"):
            name, _, value = word.partition("=")
            options[name] = value
        elif name:
            options[name] = f"{options[name]} {word}".strip()
    return _leave_out(options, _OWN_OPTIONS)


def _leave_out(values: Mapping[str, str], names: frozenset[str] | set[str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if name not in names}


def _list_changes(planned: Mapping[str, str], actual: Mapping[str, str]) -> list[str]:
    names = sorted(name for name in {*planned, *actual} if planned.get(name) != actual.get(name))
    return [
        f"{name} {_format_safe_value(name, actual.get(name))} instead of {_format_safe_value(name, planned.get(name))}"
        for name in names
        if LEFT_OUT not in actual.get(name, "")
    ]


def _refuse(what: str, boot: Boot, wrong: Sequence[str]) -> Iterator[Confound]:
    if wrong:
        yield _of_boot(boot, what, "; ".join(wrong))


def _of_boot(boot: Boot, what: str, evidence: str, *, refuses: bool = True) -> Confound:
    return Confound(what, f"boot {boot.number + 1}: {evidence}", refuses)


def _find_unequal_values(what: str, boots: Mapping[int, Mapping[str, str]]) -> Iterator[Confound]:
    """Yield a refusing confound if a value differs between boots or is absent in some."""
    wrong = []
    for name in sorted({name for values in boots.values() for name in values}):
        boots_by_value: dict[str, list[int]] = {}
        for number, values in boots.items():
            boots_by_value.setdefault(values.get(name) or "", []).append(number)
        if len(boots_by_value) > 1:
            parts = (f"{_format_safe_value(name, v or None)} in {_name_boots(on)}" for v, on in boots_by_value.items())
            wrong.append(f"{name}: {', '.join(parts)}")
    if wrong:
        yield Confound(what, "; ".join(wrong), refuses=True)


def _name_boots(numbers: Sequence[int]) -> str:
    *others, last = (str(number + 1) for number in sorted(numbers))
    return f"boots {', '.join(others)} and {last}" if others else f"boot {last}"


def _list_by_boot(values: Mapping[int, float], unit: str) -> str:
    return ", ".join(f"boot {number + 1}: {value:g}" for number, value in sorted(values.items())) + f" {unit}"


def _format_safe_value(name: str, value: str | None) -> str:
    """Return a value to show; a secret is not shown."""
    if value is None:
        return "none"
    return "another value" if is_secret(name) else value[:80] or "set"
