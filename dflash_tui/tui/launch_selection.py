"""The selection on the launch screen: a launch request per recipe, one GPU for all, and the resulting plans."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from msgspec.structs import replace

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.formatting import format_gib
from dflash_tui.launch import planner
from dflash_tui.launch.planner import LaunchOutline, LocalModels, PlannedLaunch
from dflash_tui.machine.gpus import Gpu, GpuProbe, free_memory
from dflash_tui.planning.cluster import Cluster
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import resolution
from dflash_tui.planning.recipes.recipe import Mode, Recipe, SetUp, Status
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.runs.verification import Verification

MOST_TOKENS = 64


class Suitability(StrEnum):
    """How well a recipe suits the machine; the value is its mark in the list."""

    YES = "✓"
    MAYBE = "!"
    NO = "✗"


MARKS = (
    (Suitability.YES.value, "Would start: the checks of class, driver and memory pass"),
    (Suitability.MAYBE.value, "May start: its memory is tight or unknown"),
    (
        Suitability.NO.value,
        "Would not start here: no such GPU, its driver is too old, too little memory, or known to fail",
    ),
    ("GiB", "Memory that it needs on each GPU, with one request of its longest context"),
    ("161 here", "tok/s of the last requests of its newest run on this machine"),
    ("(30–35)", "tok/s published for this GPU with another profile, method or mode"),
)
"""The marks of recipes and their meanings."""


class SuitabilityReason(NamedTuple):
    """A recipe's suitability and the reason."""

    suits: Suitability
    why: str


class LaunchSelection:
    """The selection on the launch screen, for the GPUs of `probe`."""

    def __init__(self) -> None:
        self.probe: GpuProbe | None = None
        self.models: LocalModels = {}
        self.verified: dict[str, Verification] = {}
        self.measured: dict[str, float] = {}
        """tok/s of the newest run on this machine, by recipe."""
        self.clusters: dict[tuple[str, ...], Cluster] = {}
        """The hosts that were reached with their links, by peers."""
        self.surveyed: dict[tuple[str, ...], PlannedLaunch] = {}
        """Plans completed by the hosts' survey, by the command of rank 0."""
        self.gpu: int | None = None  # the index of the GPU chosen by the user
        self._requests: dict[str, LaunchRequest] = {}
        self._planned: dict[str, tuple[object, PlannedLaunch]] = {}
        self._outlined: dict[str, tuple[object, LaunchOutline]] = {}

    def request(self, recipe: Recipe) -> LaunchRequest:
        """Return the request for a recipe; unset fields are left to the recipe and the machine."""
        request = self._requests.get(recipe.name) or LaunchRequest(recipe=recipe.name)
        return request if self.gpu is None or recipe.for_cpu else replace(request, gpu=str(self.gpu))

    def plan(self, recipe: Recipe, port: int | None = None) -> PlannedLaunch:
        """Return the plan of `recipe` with its selection, as the command line plans it; `port` is a free port.

        Raises:
            DflashError: it cannot be planned.
        """
        request, probe = self.request(recipe), self.probe or GpuProbe()
        request = replace(request, cluster=self.clusters.get(request.peers))
        basis = (request, probe, self.models, recipe, port)
        before, planned = self._planned.get(recipe.name, (None, None))
        if planned is None or before != basis:
            planned = planner.plan_launch(request, probe, models=self.models, recipe=recipe, port=port)
            if new := {
                name: model
                for name, model in planner.find_local_models(planned.plan).items()
                if name not in self.models
            }:
                self.models = {**self.models, **new}
                return self.plan(recipe, port)
            self._planned[recipe.name] = basis, planned
        if survey := self.surveyed.get(planned.plan.argv):
            ranks = replace(planned.plan, ranks=survey.plan.ranks)
            planned = planned._replace(plan=ranks, memory=survey.memory)
        return planned

    def forget_models(self) -> None:
        """Read the local models again."""
        self.models, self._planned = {}, {}

    def outline(self, recipe: Recipe) -> LaunchOutline:
        """Return the outline of `recipe` with its selection; a full plan is made only if something was selected.

        Raises:
            DflashError: it cannot be planned.
        """
        if recipe.name in self._requests:
            planned = self.plan(recipe)
            return LaunchOutline(planned.resolved, planned.plan.num_speculative_tokens, planned.memory)
        basis = recipe, self.probe or GpuProbe(), self.request(recipe).gpu, self.models
        before, outline = self._outlined.get(recipe.name, (None, None))
        if outline is None or before != basis:
            outline = planner.outline_launch(*basis)
            self._outlined[recipe.name] = basis, outline
        return outline

    def choose_peers(self, recipe: Recipe, peers: tuple[str, ...]) -> None:
        """Serve `recipe` with these hosts (empty: alone), tensor-parallel if it cannot be planned otherwise."""
        request, hosts = self.request(recipe), 1 + len(peers)
        split = {"tensor-parallel-size": str(hosts)}
        settings = {name: value for name, value in request.settings.items() if name not in split}
        variants = {name: variant for name, variant in recipe.variants.items() if variant.hosts}
        variant = None if request.variant in variants else request.variant
        variant = variant or next((name for name, layer in variants.items() if peers and layer.hosts == hosts), None)
        chosen = replace(request, peers=peers, variant=variant, settings=settings, gpu=None)
        if peers:
            try:
                self.plan_request(recipe, chosen)
            except UsageError:
                chosen = replace(chosen, settings=settings | split)
        self._requests[recipe.name] = chosen

    def plan_request(self, recipe: Recipe, request: LaunchRequest) -> PlannedLaunch:
        """Return the plan of `recipe` for `request`, without selecting it.

        Raises:
            DflashError: it cannot be planned.
        """
        return planner.plan_launch(request, self.probe or GpuProbe(), models=self.models, recipe=recipe)

    @property
    def cards(self) -> tuple[Gpu, ...]:
        """The working GPUs."""
        return tuple(card for card in self.probe.gpus if not card.trouble) if self.probe else ()

    def choose_cards(self, recipe: Recipe | None) -> tuple[Gpu, ...]:
        """Return the GPUs that a launch would use: the plan's, else the selected one, else the freest."""
        try:
            planned = self.plan(recipe).gpus if recipe else ()
        except DflashError:
            planned = ()
        if planned or not self.cards:
            return planned
        chosen = [card for card in self.cards if card.index == self.gpu]
        return (chosen[0] if chosen else max(self.cards, key=free_memory),)

    def can_change(self, recipe: Recipe | None, what: str) -> bool:
        """Return whether `change` of `what` would select another value."""
        if what == "gpu" or recipe is None:
            return what == "gpu" and len(self.cards) > 1
        try:
            match what:
                case "tokens":
                    return self._drafts(recipe)
                case "set_up":
                    return self._drafts(recipe) and self.plan(recipe).fast is not None
                case "profile" | "variant":
                    return len(self._list_values(recipe, what)[0]) > 1
        except DflashError:
            return False
        return True

    def change(self, recipe: Recipe | None, what: str, step: int = 1) -> None:
        """Select the value of `what` that comes `step` later; `tokens` are changed by `step`, within the limits.

        `what` is a field of the request, `tokens`, or `gpu`: the GPU after the first that `recipe` uses.

        Raises:
            DflashError: the current value is unknown, since `recipe` cannot be planned.
        """
        if what == "gpu":
            if taken := self.choose_cards(recipe):
                indices = [card.index for card in self.cards]
                self.gpu = indices[(indices.index(taken[0].index) + step) % len(indices)]
        elif recipe and what == "tokens":
            tokens = self.plan(recipe).plan.num_speculative_tokens + step
            self._change(recipe, num_speculative_tokens=max(0, min(MOST_TOKENS, tokens)))
        elif recipe:
            values, chosen = self._list_values(recipe, what)
            self._change(recipe, **{what: values[(values.index(chosen) + step) % len(values)]})
            if what in {"variant", "method"}:  # each has its own default
                self._change(recipe, num_speculative_tokens=None)

    def _drafts(self, recipe: Recipe) -> bool:
        return (self.request(recipe).method or recipe.method) is not Method.NONE

    def _list_values(self, recipe: Recipe, what: str) -> tuple[list[Any], Any]:
        """Return the values that a field of the request may have for `recipe`, and the current one."""
        request = self.request(recipe)
        match what:
            case "mode":
                modes = [mode for mode in Mode if mode is not Mode.GRAPHS or not recipe.for_cpu]
                return modes, request.mode or self.plan(recipe).plan.mode
            case "method":
                return [*resolution.list_methods(recipe)], request.method or recipe.method
            case "profile":
                names = [*resolution.list_profiles(recipe)]
                return names, request.profile or names[0]
            case "variant":
                return [None, *recipe.variants], request.variant
        return [SetUp.PUBLISHED, SetUp.FAST], self.plan(recipe).plan.set_up

    def change_request(self, recipe: Recipe, request: LaunchRequest) -> None:
        """Set the request of `recipe`; the GPU is selected for all recipes."""
        self._requests[recipe.name] = replace(request, gpu=None)

    def take_changes(self, recipe: Recipe, port: int | None, changes: LaunchChanges) -> PlannedLaunch:
        """Apply `changes` to the request of `recipe` and return its plan, on a free `port`.

        Raises:
            DflashError: it cannot be planned; the request is unchanged.
        """
        request = self.request(recipe).with_changes(changes)
        self.plan_request(recipe, request)
        self.change_request(recipe, request)
        return self.plan(recipe, port)

    def _change(self, recipe: Recipe, **fields: str | int | Mode | Method | None) -> None:
        request = self._requests.get(recipe.name) or LaunchRequest(recipe=recipe.name)
        self._requests[recipe.name] = replace(request, **fields)

    def suited(self, recipe: Recipe) -> SuitabilityReason:
        """Return whether `recipe` would start here, as far as known; preflight checks more before a launch."""
        if recipe.for_cpu:
            return SuitabilityReason(Suitability.YES, "runs on any CPU")
        if not self.cards:
            looking = "looking for GPUs" if self.probe is None else "no GPU here"
            return SuitabilityReason(Suitability.NO, f"{looking}; it is for {', '.join(recipe.reported_on) or 'a GPU'}")
        try:
            outline = self.outline(recipe)
        except DflashError as error:
            return SuitabilityReason(Suitability.NO, error.what)
        if why := self._find_hindrance(outline):
            return SuitabilityReason(Suitability.NO, why)
        doubt = ""
        if outline.memory is None or not outline.memory.knows_weights:
            doubt = "the memory that it needs is not known"
        elif outline.memory.requests is not None and outline.memory.requests < 1:
            doubt = "it may not fit: the estimate is above what vLLM may take"
        return SuitabilityReason(
            Suitability.MAYBE if doubt else Suitability.YES, doubt or "class, driver and memory fit"
        )

    def _find_hindrance(self, outline: LaunchOutline) -> str:
        standing, memory, engine = outline.resolved.standing, outline.memory, outline.resolved.engine
        driver = (self.probe.driver if self.probe else "").partition(".")[0]
        if standing.status is Status.BROKEN:
            return f"broken: {standing.why}"
        if engine.driver and driver.isdigit() and int(driver) < int(engine.driver):
            return f"vLLM {engine.vllm} needs driver {engine.driver} or newer, and {driver} is here"
        if memory and memory.certain > memory.budget:
            return f"it needs {format_gib(memory.certain)} at least, and vLLM may take {format_gib(memory.budget)}"
        return ""
