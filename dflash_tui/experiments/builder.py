"""Build the design of an experiment from a request: each arm is planned as a launch of its own."""

from __future__ import annotations

import asyncio
import math
import shlex
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.benchmark import suites
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import pluralize
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.experiments import boot, store, variation
from dflash_tui.experiments.analysis import measures
from dflash_tui.experiments.design import Arm, BootOptions, Design, RunningServer, Scale, Temperature
from dflash_tui.experiments.variation import VariationError, Varied
from dflash_tui.launch import planner
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.monitoring import server_identity, startup_history
from dflash_tui.planning import memory
from dflash_tui.planning.methods import Method
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.runs import lifecycle

# The fields of a plan that identify a launch.
LAUNCH_IDENTITY_FIELDS = (
    "argv", "env", "patches", "disabled_patches", "engine_folder", "models_folder", "gpus", "port", "start",
)  # fmt: skip
_HOW_TO_DIFFER = "say what `ours` changes: --mode, --num-speculative-tokens, --set patches.NAME=true or another --set"
# Tokens of context: the longest prompt of `field` has about 9,000, and tokenizers differ.
_ROOM = 16_384
# The longest prompt of `contexts` has about 33,000.
_ROOM_FOR_CONTEXTS = 40_960


class ExperimentRequest(BootOptions, frozen=True):
    """What the user asked to compare. None leaves a field to the recipe or to what is varied."""

    launch: LaunchRequest
    vary: str = variation.DEFAULT
    boots: int | None = None
    """Boots per arm; by default two if `honest`, else one."""
    honest: bool = False
    """Whether each arm is launched at least twice, so that the spread between boots is known."""
    suite: str | None = None
    scale: Scale | None = None
    temperature: Temperature | None = None
    keep_answers: bool = True
    prompts: int | None = None
    """The minimum number of prompts that each boot answers, in place of `rounds`."""
    fixed: bool | None = None
    """Whether answers continue past the model's own end; by default only with random weights."""


register_type(ExperimentRequest)
# The options of `ab` whose names differ from their fields: for true, and for false.
_SWITCHES = {
    "fixed": ("--fixed", "--no-fixed"),
    "own_cache": ("", "--keep-cache"),
    "keep_answers": ("", "--no-answers"),
    "measures_start": ("--measure start", ""),
    "checks_output": ("", ""),
    "by_kind": ("", ""),
}
_TYPED = {"suite", "scale", "temperature", *BootOptions.__struct_fields__} - {*_SWITCHES, "cold"} | {"fixed"}


def add_typed_options(request: ExperimentRequest, words: str) -> ExperimentRequest:
    """Return the request with options of `ab` typed in the panel as `NAME=VALUE`, separated by spaces."""
    typed = dict[str, object]()
    for word in words.split():
        option, _, value = word.removeprefix("--").partition("=")
        if (name := option.replace("-", "_")) not in _TYPED:
            raise UsageError(f"an A/B has no option {option}", hint=f"options: {', '.join(list_typed_options())}")
        typed[name] = value.split(",") if name == "concurrency" else value
    try:
        return msgspec.convert(msgspec.structs.asdict(request) | typed, ExperimentRequest, strict=False)
    except msgspec.ValidationError as error:
        raise UsageError(f"not a value of that option: {words}", evidence=str(error)) from None


def list_typed_options() -> list[str]:
    """Return the options of `ab` that can be typed in the panel."""
    return sorted(name.replace("_", "-") for name in _TYPED)


class _PlannedArms(NamedTuple):
    """The arms of an experiment, the resolved recipes of those that are launched, and what they have in common."""

    varied: Varied
    arms: tuple[Arm, ...]
    resolved_recipes: list[ResolvedRecipe]
    recipe: str
    scale: float


def build_experiment(request: ExperimentRequest, varied: Varied | None = None) -> tuple[Design, list[ResolvedRecipe]]:
    """Return the design and the resolved recipe of each launched arm; `varied` replaces `request.vary`.

    An arm that is a running server is asked what it is, with a short chat.
    """
    if varied is None and variation.is_of_servers(request.vary):
        return _compose_design(request, _ask_servers(request))
    return _compose_design(request, _plan_launches(request, varied))


def _plan_launches(request: ExperimentRequest, varied: Varied | None) -> _PlannedArms:
    if request.key_env or request.model:
        raise UsageError("--key-env and --model are for a URL", hint="--vary url=URL,RECIPE compares with a server")
    recipe = recipe_loader.find_recipe(request.launch.recipe)
    probe = planner.probe_for(recipe)  # once, so that all arms are planned for the same GPUs

    def plan(launch: LaunchRequest) -> PlannedLaunch:
        return planner.plan_launch(launch, probe, recipe=recipe)

    varied = varied or _choose_variation(request, plan)
    # A launch over all hosts may need flags that only its arms set.
    alone = varied.arms["1"] if varied.key == variation.HOSTS else LaunchChanges()
    base = plan(request.launch.with_changes(alone)).plan
    port = request.launch.port or lifecycle.find_free_port(base.port)
    arms, resolved_recipes = _plan_arms(varied, request.launch.with_changes(LaunchChanges(port=port)), plan)
    return _PlannedArms(varied, arms, resolved_recipes, base.recipe, base.bench_scale)


def _ask_servers(request: ExperimentRequest) -> _PlannedArms:
    if request.measures_start:
        raise UsageError("a server that already runs is not started", hint="drop --measure start")
    launch = request.launch
    names, ours = variation.split_servers(request.vary, launch.recipe)
    if ours and recipe_loader.find_recipe(ours) != recipe_loader.find_recipe(launch.recipe):
        raise UsageError(f"{ours} is not the recipe of this A/B, {launch.recipe}", hint="name one of the two")
    servers = {name: _ask_server(name, request) for name in names if name != ours}
    planned = _PlannedArms(Varied(variation.URL, {}), (), [], variation.URL, 1.0)
    if ours:
        common = replace(request, key_env=None, model=None)
        planned = _plan_launches(common, Varied(variation.URL, {ours: LaunchChanges()}))
    own = planned.arms[0] if ours else None
    arms = [own if own and name == ours else _build_server_arm(servers[name], launch.recipe, own) for name in names]
    if len({arm.name for arm in arms}) < len(arms):
        raise VariationError(f"{request.vary}: it names a server twice")
    varied = Varied(variation.URL, {name: LaunchChanges() for name in names})
    return planned._replace(varied=varied, arms=tuple(arms))


def _ask_server(url: str, request: ExperimentRequest) -> RunningServer:
    found = asyncio.run(server_identity.find_server(url, request.model, request.key_env))
    return RunningServer(found.url, found.model, found.facts, server_identity.is_here(found.url))


def _build_server_arm(server: RunningServer, recipe: str, own: Arm | None) -> Arm:
    beside = own if server.is_here else None
    plan = Plan(
        recipe=recipe, title=server.url, synthetic="", mode=Mode.EAGER, target=server.facts.settings.get("model", ""),
        drafter="", num_speculative_tokens=0, served_name=server.model, port=server_identity.read_port(server.url),
        engine_folder="", argv=(), env={}, patches=(), method=Method.NONE,
        on_cpu=bool(beside and beside.plan.on_cpu), gpus=beside.plan.gpus if beside else (),
    )  # fmt: skip
    return Arm(server.url, LaunchRequest(recipe=recipe), plan, server)


def _compose_design(request: ExperimentRequest, planned: _PlannedArms) -> tuple[Design, list[ResolvedRecipe]]:
    varied, arms, resolved_recipes, recipe, scale = planned
    boots = _choose_boots(request, varied)
    filling = int(request.measures_start and not request.cold)  # the first boot of an arm fills its caches
    name = request.suite or _choose_suite(planned, by_kind=request.by_kind)
    now, suite = time.time(), suites.load_suite(name)
    synthetic = "; ".join(dict.fromkeys(arm.plan.synthetic for arm in arms if arm.plan.synthetic))
    design = Design(
        id=store.make_experiment_id(recipe, now),
        made_at=now,
        version=__version__,
        recipe=recipe,
        vary=varied.key,
        arms=arms,
        # An arm without speculation scores the answers of the others, so it comes last.
        order=variation.order_boots(len(arms), boots + filling)[:: -1 if request.checks_output else 1],
        suite=suites.make_absolute(name),
        digest=suite.digest,
        scale=scale if request.scale is None else request.scale,
        temperature=_choose_temperature(request, arms, varied),
        levels=suite.levels,
        repeats=suite.repeats,
        keep_answers=request.keep_answers,
        synthetic=synthetic,
        fixed=bool(synthetic) if request.fixed is None else request.fixed,
        **{name: getattr(request, name) for name in BootOptions.__struct_fields__},
    )
    if request.prompts:
        design = replace(design, rounds=math.ceil(request.prompts / suite.requests))
    return replace(design, command=_format_command(design, request, boots)), resolved_recipes


def _choose_boots(request: ExperimentRequest, varied: Varied) -> int:
    boots = request.boots or (2 if request.honest or varied.key == variation.STOCK_KEY else 1)
    if request.honest and boots < 2:
        raise UsageError("--honest needs at least two boots per arm", hint="drop --boots, or take --boots 2")
    if request.cold and not (request.measures_start and request.own_cache):
        hint = "--measure start, without --keep-cache"
        raise UsageError("--cold only applies to measured starts with caches of their own", hint=hint)
    return boots


def _choose_variation(request: ExperimentRequest, plan: Callable[[LaunchRequest], PlannedLaunch]) -> Varied:
    if request.checks_output:
        return variation.SPECULATION
    if request.vary == variation.STOCK_VARIATION:
        return variation.build_stock_variation(request.launch, plan)
    if variation.is_of_hosts(request.vary):
        alone = plan(request.launch.with_changes(LaunchChanges(removed=variation.ALONE))).resolved
        width = alone.flags.get("tensor-parallel-size")
        return variation.build_host_variation(request.vary, request.launch, width if isinstance(width, int) else 1)
    repeated = (request.suite or "").partition(":")[0] in {suites.REPEAT, suites.AGENTS}
    return variation.parse_variation(request.vary, repeated=repeated)


def _format_command(design: Design, request: ExperimentRequest, boots: int) -> str:
    """Return the command line that repeats the experiment, independent of later defaults."""
    if request.checks_output:
        options = {"prompts": request.prompts, "boots": boots, **_list_sent(design, ("suite", "scale", "seed"))}
        return format_options(["verify", "--lossless"], request.launch, options)
    sent = _list_sent(
        design, ("suite", "scale", "temperature", "fixed", "keep_answers", *BootOptions.__struct_fields__)
    )
    return format_options(["ab"], request.launch, {"vary": request.vary, "boots": boots, **sent})


def _list_sent(design: Design, names: Sequence[str]) -> dict[str, object]:
    return {name: getattr(design, name) for name in names}


def format_options(command: Sequence[str], launch: LaunchRequest, options: Mapping[str, object]) -> str:
    """Return a command line with a launch and options named by their fields; None values are omitted."""
    words = list[str]()
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words += _SWITCHES.get(name, (option, ""))[not value].split()
        elif value is not None:
            words += [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
    return shlex.join(["dflash-tui", *command, *launch.to_argv(), *words])


def _choose_suite(planned: _PlannedArms, *, by_kind: bool) -> str:
    """Return `field`, `quick` for short contexts, `contexts` for stock against ours, or the kinds that fit of `map`."""
    contexts = [*map(memory.read_max_model_len, planned.resolved_recipes)]
    contexts += [arm.server.facts.context for arm in planned.arms if arm.server]
    lengths = [length for length in contexts if length is not None]
    if by_kind:
        return suites.MAP if min(lengths, default=_ROOM) >= _ROOM else f"{suites.MAP}:{suites.SHORT_KINDS}"
    if planned.varied.key == variation.STOCK_KEY and min(lengths, default=_ROOM_FOR_CONTEXTS) >= _ROOM_FOR_CONTEXTS:
        return "contexts"
    return "quick" if min(lengths, default=_ROOM) < _ROOM else "field"


def _choose_temperature(request: ExperimentRequest, arms: tuple[Arm, ...], varied: Varied) -> float | None:
    """Return the requested temperature, else 0, or None (the model's own) if the arms draft differently.

    Acceptance depends on the sampling. Stock against ours uses 0, since their answers are compared, and so do running
    servers, whose models' own temperatures are unknown.
    """
    temperature, changes = request.temperature, any(measures.changes_drafting(arms[0], arm) for arm in arms)
    if temperature is None and (varied.key in {variation.STOCK_KEY, variation.URL} or not changes):
        temperature = 0.0
    if temperature == 0 and request.top_p is not None:
        raise UsageError("--top-p changes nothing at temperature 0", hint="add --temperature T above 0")
    return temperature


def _plan_arms(
    varied: Varied, common: LaunchRequest, plan: Callable[[LaunchRequest], PlannedLaunch]
) -> tuple[tuple[Arm, ...], list[ResolvedRecipe]]:
    arms, resolved_recipes = list[Arm](), list[ResolvedRecipe]()
    for name, changes in varied.arms.items():
        request = common.with_changes(changes)
        try:
            planned = plan(request)
        except UsageError as error:
            raise VariationError(
                f"{varied.key}: {name}: {error.what}", evidence=error.evidence, hint=error.hint
            ) from None
        arm = Arm(name, planned.plan.relaunch_request, planned.plan)
        meant = [earlier for earlier in arms if not name.startswith(f"{earlier.name} (")]  # `eager (2)` is a repetition
        if alike := next((earlier for earlier in meant if are_alike(earlier, arm)), None):
            what = f"{varied.key}: {alike.name} and {name} result in the same launch"
            if varied.key == variation.STOCK_KEY:
                raise VariationError(what, hint=_HOW_TO_DIFFER)
            raise VariationError(what, example=f"{varied.key}={name},{name} compares a launch with itself")
        arms.append(arm)
        resolved_recipes.append(planned.resolved)
    return tuple(arms), resolved_recipes


def are_alike(a: Arm, b: Arm) -> bool:
    """Whether two arms are the same launch."""
    return all(getattr(a.plan, name) == getattr(b.plan, name) for name in LAUNCH_IDENTITY_FIELDS)


class DurationEstimate(NamedTuple):
    """Seconds of all boots, None if unknown; without the answers (at most `answers`) unless `whole`."""

    seconds: float | None
    whole: bool
    source: str
    answers: float | None = None
    published: str = ""


class BootEstimate(NamedTuple):
    """Seconds of a boot of each arm, None if unknown; unless `whole`, excluding the answers."""

    seconds: tuple[float | None, ...]
    whole: bool
    source: str


def estimate_duration(design: Design) -> DurationEstimate:
    """Return the estimated duration of all boots; unknown if one arm is unknown."""
    boots = estimate_boots(design)
    estimate = DurationEstimate(_add_boots(design, boots.seconds), boots.whole, boots.source)
    published = [_find_published_speed(arm) for arm in design.arms]
    tokens = 0 if design.measures_start or design.concurrency != (1,) else boot.count_most_tokens(design)
    if boots.whole or not tokens or not all(published):
        return estimate
    speeds = [found[0] for found in published if found]
    sources = dict.fromkeys(found[1] for found in published if found)
    answers = sum(tokens / speeds[place] for place in design.order)
    return estimate._replace(answers=answers, published=", ".join(sources))


def estimate_boots(design: Design) -> BootEstimate:
    """Return the estimated seconds of a boot of each arm, from earlier boots or else earlier starts."""
    before = _find_earlier_boots(design)
    whole = tuple(statistics.median(took) if took else None for took in before)
    if _add_boots(design, whole):
        count = sum(map(len, before))
        return BootEstimate(whole, True, f"by {pluralize(count, 'earlier boot')} of such experiments")
    starts = [_estimate_start(arm) for arm in design.arms]
    sources = dict.fromkeys(source for seconds, source in starts if seconds is not None)
    return BootEstimate(tuple(seconds for seconds, _ in starts), False, ", ".join(sources))


def _add_boots(design: Design, arms: Sequence[float | None]) -> float | None:
    durations = [seconds for place in design.order if (seconds := arms[place]) is not None]
    return sum(durations) if len(durations) == len(design.order) else None


def _find_published_speed(arm: Arm) -> tuple[float, str] | None:
    for figures in arm.plan.expected:
        speeds = figures.baseline_tok_s if arm.plan.method is Method.NONE else figures.tok_s
        if speeds and not figures.set_up and (figures.streams or 1) == 1:
            return statistics.fmean(speeds), figures.source
    return None


def _find_earlier_boots(design: Design) -> list[list[float]]:
    taken: list[list[float]] = [[] for _ in design.arms]
    for other in store.list_experiments():
        if _workload(other) != _workload(design):
            continue
        progress = store.read_progress(store.experiment_folder(other.id))
        for earlier in progress.boots:
            kind = progress.design.arms[earlier.arm].plan.kind
            for place, arm in enumerate(design.arms):
                if not earlier.error and earlier.took is not None and arm.plan.kind == kind:
                    taken[place].append(earlier.took)
    return taken


def _workload(design: Design) -> tuple[object, ...]:
    names = {"digest", "scale", "fixed", *BootOptions.__struct_fields__} - {"seed", "top_p", "key_env", "model"}
    return tuple(getattr(design, name) for name in sorted(names))


def _estimate_start(arm: Arm) -> tuple[float | None, str]:
    if ready := startup_history.estimate_ready(arm.plan):
        return ready.seconds, "by earlier starts here"
    bands = [band for band in arm.plan.expected if band.ready_s and not band.set_up]
    if bands and bands[0].ready_s:
        return statistics.fmean(bands[0].ready_s), f"by published starts ({bands[0].source})"
    return None, ""
