"""What disturbs a measurement from outside: others on the machine, its heat and power, disks, requests of others. Pure.

Only boots are asked here; what was planned and launched is held against them in `confounds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dflash_tui.common.secrets import is_secret
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
        ours = sum(done.tokens for done in boot.requests) + sum(window.filler_tokens for window in boot.windows)
        strange = (boot.generated or 0.0) - ours
        # Of a filler that was broken off, the server has generated more than arrived.
        unseen = _TOKENS * sum(window.streams for window in boot.windows if window.filler_tokens)
        if strange > max(_TOKENS, _STRANGE * ours) + unseen and not any(done.error for done in boot.requests):
            evidence = f"boot {boot.number + 1}: {strange:.0f} tokens beside our {ours}"
            yield Confound("other clients sent requests to the server", evidence, refuses=True)


def _machine_state(boots: Sequence[Boot]) -> Iterator[Confound]:
    """Throttling, the load of others and the power supply."""
    powers = {}
    limits = {}
    for boot in boots:
        readings = _list_conditions(boot)
        throttles = sorted({why for reading in readings for why in reading.throttle or ()})
        hard = [why for why in throttles if why in _THROTTLES]
        if any(reading.throttle is not None for reading in readings):
            limits[boot.number] = {"reported": ", ".join(why for why in throttles if why not in _THROTTLES)}
        if hard:
            yield Confound("the GPU was throttled", f"boot {boot.number + 1}: {', '.join(hard)}", refuses=True)
        foreign = sorted({who for reading in readings for who in reading.foreign or ()})
        if foreign:
            yield Confound(
                "other processes used the GPU", f"boot {boot.number + 1}: {', '.join(foreign)[:200]}", refuses=True
            )
        powers[boot.number] = {reading.power for reading in readings if reading.power}
    if any("battery" in supplies for supplies in powers.values()):
        on = ", ".join(f"boot {number + 1}" for number, supplies in powers.items() if "battery" in supplies)
        yield Confound("the machine ran on its battery", on, refuses=True)
    for confound in find_unequal_values("the driver reported a limit of the GPU's clocks in some boots only", limits):
        yield Confound(confound.what, confound.evidence.removeprefix("reported: "), refuses=False)


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
    clocks = {number: reading.clock_mhz for number, reading in ends.items() if reading.clock_mhz}
    if clocks and max(clocks.values()) - min(clocks.values()) > _CLOCK * max(clocks.values()):
        yield Confound("the GPU's clock differed between boots", _list_by_boot(clocks, "MHz"), refuses=False)
    degrees = {number: reading.temperature_c for number, reading in ends.items() if reading.temperature_c is not None}
    if degrees and max(degrees.values()) - min(degrees.values()) > _CELSIUS:
        yield Confound("the GPU's temperature differed between boots", _list_by_boot(degrees, "°C"), refuses=False)
    loads = {number: round(reading.load, 1) for number, reading in begins.items() if reading.load is not None}
    others = {boot.number: round(boot.others, 1) for boot in boots if boot.others is not None}
    if others and max(others.values()) - min(others.values()) > _OTHERS:
        yield Confound("other processes kept CPU cores busy unequally", _list_by_boot(others, "cores"), refuses=False)
    if loads and max(loads.values()) - min(loads.values()) > _LOAD:
        yield Confound(
            "the machine's load differed between boots", _list_by_boot(loads, "on average over a minute"), refuses=False
        )


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
        boots_by_value: dict[str, list[int]] = {}
        for number, values in boots.items():
            boots_by_value.setdefault(values.get(name) or "", []).append(number)
        if len(boots_by_value) > 1:
            wrong.append(
                f"{name}: "
                + ", ".join(
                    f"{format_safe_value(name, value or None)} in {name_boots(on)}"
                    for value, on in boots_by_value.items()
                )
            )
    if wrong:
        yield Confound(what, "; ".join(wrong), refuses=True)


def name_boots(numbers: Sequence[int]) -> str:
    """Return boots by the numbers that readers see: `boot 3`, or `boots 1, 2 and 4`."""
    *others, last = (str(number + 1) for number in sorted(numbers))
    return f"boots {', '.join(others)} and {last}" if others else f"boot {last}"


def _list_conditions(boot: Boot) -> list[Conditions]:
    """Return how all hosts of a boot were."""
    near = [conditions for conditions in (boot.before, boot.after) if conditions]
    return [*near, *(far for conditions in near for far in conditions.hosts.values())]


def _list_by_boot(values: Mapping[int, float], unit: str) -> str:
    return ", ".join(f"boot {number + 1}: {value:g}" for number, value in sorted(values.items())) + f" {unit}"


def format_safe_value(name: str, value: str | None) -> str:
    """Return a value for a sentence, one of a secret by no more than that there is one."""
    if value is None:
        return "none"
    return "another value" if is_secret(name) else value[:80] or "set"
