"""Tunes without servers: boots drawn around a truth that is known, folded and scheduled by the product's own code."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.experiments import tune_schedule, variation
from dflash_tui.experiments.builder import are_alike
from dflash_tui.experiments.design import Arm, Boot, BootEnded, Design, ExperimentFinished, Happened, Tuning
from dflash_tui.experiments.progress import Progress, fold_progress
from dflash_tui.experiments.tune_schedule import Candidate, Proposal
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.request import LaunchRequest
from tests.support.boot_factories import KINDS, boot, plan, request

# How far boots of one server, and requests of one boot, are apart: ±5 % as two standard deviations, and 2.5 %.
BETWEEN_BOOTS, BETWEEN_REQUESTS = 0.025, 0.025


class Truth(NamedTuple):
    """What each part of a setting multiplies tok/s by, what fails to start, and what a boot takes."""

    factors: Mapping[str, float]
    failing: frozenset[str] = frozenset()
    took: Callable[[LaunchRequest], float] = lambda _: 60.0
    ready: Callable[[LaunchRequest], float] = lambda _: 30.0

    def parts(self, asked: LaunchRequest) -> list[str]:
        """Return the parts of a setting, such as `mode=graphs`."""
        mode = [f"mode={asked.mode}"] if asked.mode else []
        tokens = [] if asked.num_speculative_tokens is None else [f"n={asked.num_speculative_tokens}"]
        return [*mode, *tokens, *(f"{name}={value}" for name, value in asked.settings.items())]

    def factor(self, asked: LaunchRequest) -> float:
        """Return what a setting multiplies the published setting's tok/s by."""
        return math.prod(self.factors.get(part, 1.0) for part in self.parts(asked))

    def error(self, asked: LaunchRequest) -> str:
        """Return why a setting does not start, or nothing."""
        wrong = [part for part in self.parts(asked) if part in self.failing]
        return f"{wrong[0]}: out of memory" if wrong else ""


def an_arm(asked: LaunchRequest, published: LaunchRequest) -> Arm:
    """Return a setting; another request is another command."""
    words = [f"--{name}={value}" for name, value in sorted(asked.settings.items())]
    tokens = 8 if asked.num_speculative_tokens is None else asked.num_speculative_tokens
    planned = plan(
        argv=(*plan().argv, f"--mode={asked.mode or 'eager'}", f"--n={tokens}", *words),
        mode=asked.mode or Mode.EAGER,
        num_speculative_tokens=tokens,
    )
    return Arm(tune_schedule.name_setting(published, asked), asked, planned)


def propose(axis: str, best: Arm, known: Sequence[Arm]) -> Proposal:
    """Propose candidates as `tune_schedule.propose_candidates` does, without a recipe."""
    proposal = Proposal([], {})
    for changes in variation.parse_variation(axis, least=1).arms.values():
        arm = an_arm(best.request.with_changes(changes), known[0].request)
        if not any(are_alike(arm, one) for one in (*known, *(each.arm for each in proposal.candidates))):
            proposal.candidates.append(Candidate(arm, None))  # type: ignore[arg-type] # nobody launches it
    return proposal


def a_tune(budget: float, axes: Sequence[str]) -> Design:
    """Return a tune of the recipe `toy`, which runs eagerly with eight drafted tokens."""
    published = LaunchRequest(recipe="toy")
    return Design(
        id="tune", made_at=0.0, version="1", recipe="toy", vary="tune", arms=(an_arm(published, published),),
        order=(0,), suite="field", digest="", own_cache=False, tuning=Tuning(budget, tuple(axes), "toy-tuned"),
    )  # fmt: skip


def a_boot(progress: Progress, truth: Truth, rng: random.Random) -> Boot:
    """Return the boot that is due, with chance's share in it."""
    assert progress.next
    number = progress.next[0]
    design = progress.design
    asked = design.arms[design.order[number]].request
    if error := truth.error(asked):
        return Boot(number, design.order[number], f"run{number}", took=truth.took(asked), error=error)
    speed = 30.0 * truth.factor(asked) * math.exp(rng.gauss(0, BETWEEN_BOOTS))
    prompts = random.Random("prompts")
    requests = [
        request(kind, speed * math.exp(prompts.gauss(0, 0.08) + rng.gauss(0, BETWEEN_REQUESTS))) for kind in KINDS
    ]
    ready = truth.ready(asked) * math.exp(rng.gauss(0, BETWEEN_BOOTS))
    return boot(design, number, requests, took=truth.took(asked), ready=ready)


def run_tune(
    design: Design, truth: Truth, seed: int, *, boots: int = 1000, events: Sequence[Happened] = ()
) -> tuple[Progress, list[Happened]]:
    """Run a tune to its end, or so many boots further; return how it stands, and all that happened."""
    happened = list(events)
    while True:
        progress = fold_progress(design, happened)
        if progress.next:
            if not boots:
                return progress, happened
            boots -= 1
            number = progress.next[0]
            happened.append(BootEnded(float(number), a_boot(progress, truth, random.Random(f"{seed} {number}"))))
        elif following := tune_schedule.plan_round(progress, propose):
            happened.append(replace(following.event, at=0.0))
        else:
            happened.append(ExperimentFinished(0.0))
            return fold_progress(design, happened), happened
