"""What is selected on the launch screen: a launch request for each recipe, one GPU for all, and what they come to."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from msgspec.structs import replace

from dflash_tui.common.errors import DflashError
from dflash_tui.common.formatting import format_gib
from dflash_tui.launch import planner
from dflash_tui.launch.planner import LocalModels, PlannedLaunch
from dflash_tui.machine.gpus import Gpu, GpuProbe, free_memory
from dflash_tui.planning import resolution
from dflash_tui.planning.recipe import Mode, Recipe, Status
from dflash_tui.planning.request import LaunchRequest

MOST_TOKENS = 64


class Suitability(StrEnum):
    """How a recipe suits the machine, as the mark beside it."""

    YES = "✓"
    MAYBE = "!"
    NO = "✗"


class SuitabilityReason(NamedTuple):
    """How a recipe suits the machine, and why."""

    suits: Suitability
    why: str


class LaunchSelection:
    """What is selected on the launch screen. Nothing here looks at the machine: `probe` and `models` are handed in."""

    def __init__(self) -> None:
        self.probe: GpuProbe | None = None
        self.models: LocalModels = {}
        self.gpu: int | None = None  # the index of the GPU that somebody chose
        self._requests: dict[str, LaunchRequest] = {}
        self._planned: dict[str, tuple[object, PlannedLaunch]] = {}

    def request(self, recipe: Recipe) -> LaunchRequest:
        """Return what is asked for; what nobody chose is left to the recipe and the machine."""
        request = self._requests.get(recipe.name) or LaunchRequest(recipe.name)
        return request if self.gpu is None or recipe.for_cpu else replace(request, gpu=str(self.gpu))

    def plan(self, recipe: Recipe, port: int | None = None) -> PlannedLaunch:
        """Return the plan of `recipe` as it is selected, as the command line plans it; `port` is one that is free.

        Raises:
            DflashError: the recipe cannot be planned so.
        """
        request, probe = self.request(recipe), self.probe or GpuProbe()
        basis = (request, probe, self.models, recipe, port)
        before, planned = self._planned.get(recipe.name, (None, None))
        if planned is None or before != basis:
            planned = planner.plan_launch(request, probe, models=self.models, recipe=recipe, port=port)
            self._planned[recipe.name] = basis, planned
        return planned

    @property
    def cards(self) -> tuple[Gpu, ...]:
        """The GPUs that work."""
        return tuple(card for card in self.probe.gpus if not card.trouble) if self.probe else ()

    def taken(self, recipe: Recipe | None) -> tuple[Gpu, ...]:
        """Return the GPUs that a launch would take: those of the plan, else the chosen one, else the freest."""
        try:
            planned = self.plan(recipe).gpus if recipe else ()
        except DflashError:
            planned = ()
        if planned or not self.cards:
            return planned
        chosen = [card for card in self.cards if card.index == self.gpu]
        return (chosen[0] if chosen else max(self.cards, key=free_memory),)

    def next_gpu(self, recipe: Recipe | None = None) -> bool:
        """Choose the next GPU, after the first that `recipe` takes; return whether there is another."""
        if taken := self.taken(recipe):
            indices = [card.index for card in self.cards]
            self.gpu = indices[(indices.index(taken[0].index) + 1) % len(indices)]
        return len(self.cards) > 1

    def next_profile(self, recipe: Recipe) -> bool:
        """Choose the next profile of `recipe`; return whether there is another."""
        names, request = resolution.list_profiles(recipe), self.request(recipe)
        following = names[(names.index(request.profile or names[0]) + 1) % len(names)]
        self._change(recipe, profile=following)
        return len(names) > 1

    def next_variant(self, recipe: Recipe) -> bool:
        """Choose the next variant of `recipe`, or none; return whether it has any."""
        names, request = [None, *recipe.variants], self.request(recipe)
        following = names[(names.index(request.variant) + 1) % len(names)]
        self._change(recipe, variant=following, num_speculative_tokens=None)
        return len(names) > 1

    def next_mode(self, recipe: Recipe) -> None:
        """Choose the next mode: eager, graphs, compile; a CPU has no graphs."""
        modes = [mode for mode in Mode if mode is not Mode.GRAPHS or not recipe.for_cpu]
        chosen = self.request(recipe).mode or self.plan(recipe).plan.mode
        self._change(recipe, mode=modes[(modes.index(chosen) + 1) % len(modes)])

    def add_tokens(self, recipe: Recipe, more: int) -> None:
        """Draft more tokens per step, or fewer, within what the drafter can do."""
        planned = self.plan(recipe)
        most = planned.setup.drafter.max_tokens or MOST_TOKENS
        tokens = max(0, min(most, planned.plan.num_speculative_tokens + more))
        self._change(recipe, num_speculative_tokens=tokens)

    def _change(self, recipe: Recipe, **fields: str | int | Mode | None) -> None:
        request = self._requests.get(recipe.name) or LaunchRequest(recipe.name)
        self._requests[recipe.name] = replace(request, **fields)

    def suited(self, recipe: Recipe) -> SuitabilityReason:
        """Return how `recipe` suits the GPUs that it would take; preflight looks closer before a launch."""
        if recipe.for_cpu:
            return SuitabilityReason(Suitability.YES, "runs on any CPU")
        if not self.cards:
            looking = "looking for GPUs" if self.probe is None else "no GPU here"
            return SuitabilityReason(Suitability.NO, f"{looking}; it is for {', '.join(recipe.hardware) or 'a GPU'}")
        try:
            planned = self.plan(recipe)
        except DflashError as error:
            return SuitabilityReason(Suitability.NO, error.what)
        standing, memory = planned.setup.standing, planned.memory
        if memory and memory.certain > memory.budget:
            return SuitabilityReason(
                Suitability.NO,
                f"it needs {format_gib(memory.certain)} at least, and vLLM may take {format_gib(memory.budget)}",
            )
        tight = memory is not None and (
            "weights" in memory.unknown or (memory.requests is not None and memory.requests < 1)
        )
        why = f"{standing.status.value}: {standing.why}"
        marks = {Status.BROKEN: Suitability.NO, Status.EXPERIMENTAL: Suitability.MAYBE}
        mark = marks.get(standing.status, Suitability.MAYBE if tight else Suitability.YES)
        return SuitabilityReason(mark, f"{why}; it may not fit" if tight else why)
