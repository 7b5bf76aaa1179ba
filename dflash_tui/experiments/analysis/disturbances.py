"""What disturbs a measurement from outside: others on the machine, its heat and power, disks, requests of others. Pure.

Only boots are asked here; what was planned and launched is held against them in `core.confounds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dflash_tui.common.secret_names import is_secret
from dflash_tui.events import Phase
from dflash_tui.experiments.analysis.report import Confound
from dflash_tui.experiments.design import Boot, Conditions

_THROTTLES = frozenset({"power brake", "thermal (hardware)", "thermal (software)", "hardware slowdown"})
# A cold card is about 4 % faster (club-3090's bench.sh); 5 % of the clock is what two boots may differ by anyway.
_CLOCK, _CELSIUS, _LOAD, _OTHERS = 0.05, 15, 2.0, 0.5
# A card at its limit is as fast as the limit lets it be; laptops move theirs by themselves, and so between boots.
_WATTS = 1.05
_SECONDS, _START = 2.0, 0.1
# The counters may be a step behind the answers.
_STRANGE, _TOKENS = 0.02, 64


def find_disturbances(boots: Sequence[Boot]) -> Iterator[Confound]:
    """Yield what disturbed these boots, or some of them only."""
    for rule in (_foreign_requests, _machine_state, _power_limits, _drifts, _weight_loading):
        yield from rule(boots)


def _foreign_requests(boots: Sequence[Boot]) -> Iterator[Confound]:
    """Tokens that the server generated meanwhile and that are in no answer of ours."""
    for boot in boots:
        ours = sum(each.tokens for each in boot.requests)
        strange = (boot.generated or 0.0) - ours
        if strange > max(_TOKENS, _STRANGE * ours) and not any(each.error for each in boot.requests):
            evidence = f"boot {boot.number + 1}: {strange:.0f} tokens beside our {ours}"
            yield Confound("other clients sent requests to the server", evidence, refuses=True)


def _machine_state(boots: Sequence[Boot]) -> Iterator[Confound]:
    """Throttling, the load of others and the power supply."""
    powers = {}
    limits = {}
    for boot in boots:
        seen = _list_conditions(boot)
        throttles = sorted({why for each in seen for why in each.throttle or ()})
        hard = [why for why in throttles if why in _THROTTLES]
        if any(each.throttle is not None for each in seen):
            limits[boot.number] = {"limit": ", ".join(why for why in throttles if why not in _THROTTLES)}
        if hard:
            yield Confound("the GPU was throttled", f"boot {boot.number + 1}: {', '.join(hard)}", refuses=True)
        foreign = sorted({who for each in seen for who in each.foreign or ()})
        if foreign:
            yield Confound(
                "other processes used the GPU", f"boot {boot.number + 1}: {', '.join(foreign)[:200]}", refuses=True
            )
        powers[boot.number] = {each.power for each in seen if each.power}
    if any("battery" in supplies for supplies in powers.values()):
        on = ", ".join(f"boot {number + 1}" for number, supplies in powers.items() if "battery" in supplies)
        yield Confound("the machine ran on its battery", on, refuses=True)
    for confound in find_unequal_values("the GPU's clocks were limited in some boots", limits):
        yield Confound(confound.what, confound.evidence, refuses=False)


def _power_limits(boots: Sequence[Boot]) -> Iterator[Confound]:
    """Power limits that differ: by arms it is as if they were varied, else it is in the spread between boots.

    Arms on another number of cards have another sum of limits by themselves.
    """
    ends = [(boot, boot.after) for boot in boots if boot.after]
    limits = {boot.number: after.power_limit_w for boot, after in ends if after.power_limit_w}
    if not limits or len({after.cards for _, after in ends}) > 1:
        return
    arms: dict[int, list[float]] = {}
    for boot in boots:
        if boot.number in limits:
            arms.setdefault(boot.arm, []).append(limits[boot.number])
    if max(limits.values()) > _WATTS * min(limits.values()):
        apart = len(arms) > 1 and max(map(min, arms.values())) > _WATTS * min(map(max, arms.values()))
        what = "the GPU had another power limit in each arm" if apart else "the GPU's power limit changed between boots"
        yield Confound(what, _list_by_boot(limits, "W"), refuses=apart)


def _drifts(boots: Sequence[Boot]) -> Iterator[Confound]:
    """Clocks, temperatures and load that differ between boots: worth knowing, no reason to refuse."""
    ends = {boot.number: boot.after for boot in boots if boot.after}
    # Before the first boot nothing of ours ran; the load of a minute before each other one is that of the boot before.
    begins = {boot.number: boot.before for boot in boots if boot.before and boot.number}
    clocks = {number: each.clock_mhz for number, each in ends.items() if each.clock_mhz}
    if clocks and max(clocks.values()) - min(clocks.values()) > _CLOCK * max(clocks.values()):
        yield Confound("the GPU's clock drifted", _list_by_boot(clocks, "MHz"), refuses=False)
    degrees = {number: each.temperature_c for number, each in ends.items() if each.temperature_c is not None}
    if degrees and max(degrees.values()) - min(degrees.values()) > _CELSIUS:
        yield Confound("the GPU's temperature drifted", _list_by_boot(degrees, "°C"), refuses=False)
    loads = {number: each.load for number, each in begins.items() if each.load is not None}
    others = {boot.number: round(boot.others, 1) for boot in boots if boot.others is not None}
    if others and max(others.values()) - min(others.values()) > _OTHERS:
        yield Confound("other processes used the processors unequally", _list_by_boot(others, "of them"), refuses=False)
    if loads and max(loads.values()) - min(loads.values()) > _LOAD:
        yield Confound("the machine's load differed between boots", _list_by_boot(loads, "of load"), refuses=False)


def _weight_loading(boots: Sequence[Boot]) -> Iterator[Confound]:
    """Weights that came from the disk once and from memory later: the arms' starts differ by that, too."""
    phases = (Phase.WEIGHTS.value, Phase.DRAFTER.value)
    took = {b.number: sum(b.phases.get(phase, 0.0) for phase in phases) for b in boots if phases[0] in b.phases}
    starts = [boot.ready for boot in boots if boot.ready]
    if took and starts and max(took.values()) - min(took.values()) > max(_SECONDS, _START * min(starts)):
        rounded = {number: round(seconds, 1) for number, seconds in took.items()}
        yield Confound(
            "the weights were not loaded equally fast at each start", _list_by_boot(rounded, "s"), refuses=False
        )


def find_unequal_values(what: str, boots: Mapping[int, Mapping[str, str]]) -> Iterator[Confound]:
    """Yield what refuses a verdict when boots differ in a value; one that lacks it differs, too."""
    names = sorted({name for values in boots.values() for name in values})
    wrong = []
    for name in names:
        seen: dict[str, list[int]] = {}
        for number, values in boots.items():
            seen.setdefault(values.get(name) or "", []).append(number)
        if len(seen) > 1:
            wrong.append(
                f"{name}: "
                + ", ".join(
                    f"{format_safe_value(name, value or None)} in boot {on[0] + 1}" for value, on in seen.items()
                )
            )
    if wrong:
        yield Confound(what, "; ".join(wrong), refuses=True)


def _list_conditions(boot: Boot) -> list[Conditions]:
    return [each for each in (boot.before, boot.after) if each]


def _list_by_boot(values: Mapping[int, float], unit: str) -> str:
    return ", ".join(f"boot {number + 1}: {value:g}" for number, value in values.items()) + f" {unit}"


def format_safe_value(name: str, value: str | None) -> str:
    """Return a value for a sentence, one of a secret by no more than that there is one."""
    if value is None:
        return "unset"
    return "another value" if is_secret(name) else value[:80] or "set"
