"""What was chosen on the launch screen: GPU, recipe, profile, variant, mode, drafts; and what that comes to."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_gib
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import memory as fits
from dflash_tui.planning import plan as plans
from dflash_tui.planning import resolution as setups
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipe import Mode, Recipe, Status
from dflash_tui.planning.resolution import ResolvedRecipe

if TYPE_CHECKING:  # pynvml costs 80 ms that the first paint is spared
    from dflash_tui.machine.gpus import Gpu, GpuProbe

MOST_TOKENS = 64


class Suitability(StrEnum):
    """How a recipe suits the machine, as the mark beside it."""

    YES = "✓"
    MAYBE = "!"
    NO = "✗"


class Changes(msgspec.Struct):
    """What was changed about one recipe; None and empty are as the recipe says."""

    profile: str = ""
    variant: str = ""
    mode: Mode | None = None
    tokens: int | None = None


class SuitabilityReason(NamedTuple):
    """How a recipe suits the machine, and why."""

    suits: Suitability
    why: str


class LaunchSelection:
    """The choices of the launch screen. Nothing here looks at the machine: `probe` is handed in."""

    def __init__(self) -> None:
        self.probe: GpuProbe | None = None
        self.gpu: int | None = None
        self._changes: dict[str, Changes] = {}

    def changes(self, recipe: Recipe) -> Changes:
        """Return what was changed about `recipe`, to be changed further."""
        return self._changes.setdefault(recipe.name, Changes())

    @property
    def card(self) -> Gpu | None:
        """The chosen GPU, at first the one with the most free memory; None while there is none to choose."""
        cards = self._cards()
        if not cards:
            return None
        if self.gpu is None:
            return max(cards, key=lambda card: (card.memory_total or 0) - (card.memory_used or 0))
        return cards[self.gpu % len(cards)]

    def _cards(self) -> Sequence[Gpu]:
        return [card for card in self.probe.gpus if not card.trouble] if self.probe else ()

    def next_gpu(self) -> bool:
        """Choose the next GPU; return whether there is another."""
        cards, card = self._cards(), self.card
        if card:
            self.gpu = cards.index(card) + 1
        return len(cards) > 1

    def next_profile(self, recipe: Recipe) -> bool:
        """Choose the next profile of `recipe`; return whether there is another."""
        names, changed = setups.list_profiles(recipe), self.changes(recipe)
        changed.profile = names[(names.index(changed.profile or names[0]) + 1) % len(names)]
        return len(names) > 1

    def next_variant(self, recipe: Recipe) -> bool:
        """Choose the next variant of `recipe`, or none; return whether it has any."""
        names, changed = ["", *recipe.variants], self.changes(recipe)
        changed.variant = names[(names.index(changed.variant) + 1) % len(names)]
        changed.tokens = None
        return len(names) > 1

    def setup(self, recipe: Recipe) -> ResolvedRecipe:
        """Return what `recipe` comes to on the chosen GPU; without one on the first class that it knows."""
        changed = self.changes(recipe)
        hardware = Hardware.CPU if recipe.for_cpu else self.card.hardware if self.card else None
        return setups.resolve_recipe(recipe, hardware, profile=changed.profile, variant=changed.variant)

    def plan(self, recipe: Recipe, port: int | None = None) -> Plan:
        """Return the plan of `recipe` as chosen."""
        setup, changed = self.setup(recipe), self.changes(recipe)
        several = self.probe is not None and len(self.probe.gpus) > 1
        cards = [(self.card.index, self.card.uuid)] if several and self.card and not recipe.for_cpu else []
        if plans.count_gpus_needed(setup.flags) > 1:
            cards = []
        plan = plans.build_plan(setup, mode=changed.mode, port=port, num_speculative_tokens=changed.tokens, gpus=cards)
        return msgspec.structs.replace(plan, asked=self._asked(recipe, cards))

    def _asked(self, recipe: Recipe, cards: Sequence[tuple[int, str]]) -> dict[str, str]:
        """Return what was chosen as options, as `core.again` has them."""
        changed = self.changes(recipe)
        options = {
            "--profile": changed.profile,
            "--variant": changed.variant,
            "--mode": changed.mode or "",
            "--num-speculative-tokens": "" if changed.tokens is None else changed.tokens,
            "--gpu": ",".join(str(index) for index, _ in cards),
        }
        return {"": recipe.name} | {name: str(value) for name, value in options.items() if value != ""}

    def fit(self, recipe: Recipe) -> MemoryEstimate | None:
        """Return the memory arithmetic on the chosen GPU; None on the CPU or without a GPU."""
        machine = fits.smallest_gpu_memory([self.card] if self.card else [])
        if recipe.for_cpu or machine is None:
            return None
        plan = self.plan(recipe)
        return fits.estimate_memory(self.setup(recipe), machine, mode=plan.mode, tokens=plan.num_speculative_tokens)

    def suited(self, recipe: Recipe) -> SuitabilityReason:
        """Return how `recipe` suits the chosen GPU; preflight looks closer before a launch."""
        if recipe.for_cpu:
            return SuitabilityReason(Suitability.YES, "runs on any CPU")
        if self.card is None:
            looking = "looking for GPUs" if self.probe is None else "no GPU here"
            return SuitabilityReason(Suitability.NO, f"{looking}; it is for {', '.join(recipe.hardware) or 'a GPU'}")
        try:
            standing, fit = self.setup(recipe).standing, self.fit(recipe)
        except DflashError as error:
            return SuitabilityReason(Suitability.NO, error.what)
        if fit and fit.certain > fit.budget:
            return SuitabilityReason(
                Suitability.NO,
                f"it needs {format_gib(fit.certain)} at least, and vLLM may take {format_gib(fit.budget)}",
            )
        tight = fit is not None and ("weights" in fit.unknown or (fit.requests is not None and fit.requests < 1))
        why = f"{standing.status.value}: {standing.why}"
        marks = {Status.BROKEN: Suitability.NO, Status.EXPERIMENTAL: Suitability.MAYBE}
        mark = marks.get(standing.status, Suitability.MAYBE if tight else Suitability.YES)
        return SuitabilityReason(mark, f"{why}; it may not fit" if tight else why)
