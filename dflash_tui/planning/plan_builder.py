"""Build the plan of a launch from a resolved recipe: mode, models, patches, command, and what is said of it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dflash_tui.common import paths
from dflash_tui.planning import cuda_graphs, methods, patch_selection, startup_optimizations
from dflash_tui.planning.cluster import Cluster, build_unnamed_cluster
from dflash_tui.planning.methods import Method
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.patch_selection import PatchSelection
from dflash_tui.planning.plan import Plan, PlannedModel
from dflash_tui.planning.recipes import resolution
from dflash_tui.planning.recipes.recipe import EngineSpec, Mode, Recipe, Status
from dflash_tui.planning.recipes.resolution import ExpectedFigures, ResolvedRecipe
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.planning.serve_flags import build_flag
from dflash_tui.planning.server_command import (
    CommandParts,
    build_api_flags,
    build_gpu_variables,
    build_rank_commands,
    build_revision,
    build_speculation,
)
from dflash_tui.planning.startup_optimizations import ChosenMeasures, StartConditions

_OPEN = (
    "it listens on {}: other machines can send requests, also without the key in VLLM_API_KEY: vLLM asks for it under "
    "/v1 and few other paths, not for answers of /invocations, nor for /tokenize or /metrics; nothing is encrypted; "
    "safer is 127.0.0.1 behind an ssh tunnel, or behind a reverse proxy that passes on /v1 alone"
)
_JOINED = (
    "{} hosts join on ports that ask for no key, and what is sent there can run code: let nobody else reach the link"
)
_ANYWHERE = StartConditions()


class _Launch(NamedTuple):
    """What is launched of a recipe, and how."""

    in_mode: ResolvedRecipe
    """The recipe in the mode."""
    measures: ChosenMeasures
    """What makes it start sooner."""
    mode: Mode
    """Eager, graphs or compile."""
    tokens: int
    """Tokens that the drafter proposes per step."""
    method: Method
    """How they are drafted; `none` without any."""
    base_folder: Path
    """The vLLM environment without the patches that the plan adds."""
    engine_folder: Path
    """The vLLM environment."""

    @property
    def resolved(self) -> ResolvedRecipe:
        """The recipe in the mode, with what the measures for a shorter start set."""
        return self.measures.resolved


class ChosenEngine(NamedTuple):
    """An environment that was chosen by hand, and what its files say."""

    folder: Path
    """The folder of the environment."""
    patchable: bool = True
    """Whether a patched engine can be made from it."""
    judged: Mapping[str, str] = {}
    """Why its own files say that it does not need a patch, by name; empty for one that it needs."""
    present: Collection[str] = ()
    """The patches that are in effect in it."""
    state: str = ""
    """A digest of what is in an environment of the user's now; empty for one of ours, which never changes."""


class _Models(NamedTuple):
    """Where the models are: repositories of the hub or folders, and what builds them, if anything."""

    target: str
    drafter: str
    script: Path | None
    folder: Path | None


def build_plan(
    resolved: ResolvedRecipe,
    *,
    mode: Mode | None = None,
    port: int | None = None,
    num_speculative_tokens: int | None = None,
    gpus: Sequence[tuple[int, str]] = (),
    engine: ChosenEngine | None = None,
    request: LaunchRequest | None = None,
    conditions: StartConditions = _ANYWHERE,
    cluster: Cluster | None = None,
    rank: int = 0,
    folders: Mapping[str, str] = {},
) -> Plan:
    """Return the plan of launching a recipe; arguments that are given replace what it says.

    Args:
        resolved: The recipe for one kind of machine.
        mode: Eager, graphs or compile.
        port: The port.
        num_speculative_tokens: Tokens that the drafter proposes per step.
        gpus: Index and UUID of each GPU that the server sees; all of them when empty.
        engine: Another environment than the one that is installed for the recipe.
        request: What the user asked for, to be kept with the plan.
        conditions: What of this machine decides how the server starts.
        cluster: The hosts of a server over several; without it words stand for their addresses.
        rank: Which of the hosts the plan's own command is for.
        folders: Where copies of models lie on its host, by the name that the recipe or the user has for them.

    Raises:
        UsageError: there is no patch or measure of a name that was set by hand, or it or graphs mode cannot be had.
    """
    resolved = _replace_models(resolved, folders)
    patches = patch_selection.select_patches(
        resolved, patchable=engine is None or engine.patchable, judged=engine.judged if engine else {}
    )
    launch = _choose_launch(resolved, mode, num_speculative_tokens, engine, conditions=conditions, patches=patches)
    recipe, resolved = resolved.recipe, launch.resolved
    models = _place_models(resolved)
    cluster = None if resolved.hosts == 1 else cluster or build_unnamed_cluster(resolved.hosts)
    port = port or recipe.port
    parts = _build_command_parts(launch, models, patches, port)
    ranks = build_rank_commands(resolved, cluster, parts, patches.env)
    plan = Plan(
        recipe=recipe.name,
        title=recipe.title,
        synthetic=resolved.synthetic,
        mode=launch.mode,
        target=models.target,
        drafter=models.drafter if launch.tokens else "",
        num_speculative_tokens=launch.tokens,
        served_name=resolved.target.served_name,
        port=cluster.port if cluster and rank else port,  # it listens on none of its own
        engine_folder=str(launch.engine_folder),
        argv=ranks[rank].argv,
        env=ranks[rank].env | build_gpu_variables(gpus, resolved.engine.vllm),
        patches=patches.names,
        build_script=str(models.script or ""),
        models_folder=str(models.folder or ""),
        bench_scale=recipe.bench_scale,
        on_cpu=recipe.for_cpu,
        profile=resolved.profile,
        variant=resolved.variant,
        vllm=resolved.engine.vllm,
        hardware=resolved.hardware,
        gpus=tuple(uuid for _, uuid in gpus),
        models=list_models(resolved, launch.tokens),
        driver=resolved.engine.driver,
        request=request,
        host=resolved.host,
        restart=resolved.restart,
        method=launch.method,
        cluster=cluster,
        rank=rank,
        ranks=ranks[1:] if rank == 0 else (),
        base_folder=str(launch.base_folder) if launch.base_folder != launch.engine_folder else "",
    )
    return _explain(plan, launch, patches)


def _choose_launch(
    resolved: ResolvedRecipe,
    mode: Mode | None,
    num_speculative_tokens: int | None,
    engine: ChosenEngine | None,
    *,
    conditions: StartConditions,
    patches: PatchSelection,
) -> _Launch:
    """Return what is launched of a recipe with these patches, and how; the others are arguments of `build_plan`."""
    mode = mode or resolved.mode
    tokens = resolved.num_speculative_tokens if num_speculative_tokens is None else num_speculative_tokens
    tokens = 0 if _find_missing_drafter(resolved) else tokens
    method = resolved.method if tokens else Method.NONE
    methods.check_release(method, resolved.engine.vllm)
    in_mode = cuda_graphs.apply_mode(resolved, mode, tokens)
    base = engine.folder if engine else engine_folder_for(in_mode.engine)
    added = [patch for patch in patches.applied if engine is None or patch.name not in engine.present]
    folder = base
    if added and (engine is None or engine.patchable):
        folder = patched_folder_for(base, added, engine.state if engine else "")
    measures = startup_optimizations.choose_start_measures(in_mode, mode, base, conditions, patches.names)
    return _Launch(in_mode, measures, mode, tokens, method, base, folder)


def _replace_models(resolved: ResolvedRecipe, folders: Mapping[str, str]) -> ResolvedRecipe:
    """Return the recipe with models of `folders` in the place of those of these names."""
    target, drafter = resolved.target, resolved.drafter
    if target.model in folders:
        resolved = replace(resolved, target=replace(target, model=folders[target.model]))
    if drafter and drafter.model in folders:
        resolved = replace(resolved, drafter=replace(drafter, model=folders[drafter.model]))
    return resolved


def _place_models(resolved: ResolvedRecipe) -> _Models:
    """Return where the models are; those that a recipe builds are in another folder for other sources."""
    recipe, script, folder = resolved.recipe, None, None
    if recipe.build:
        script = paths.bundled_folder("recipes") / recipe.build.script
        folder = paths.models_folder() / f"{recipe.name}-{_digest_sources(script, _shipped_drafter(recipe))}"
    target, drafter = (
        (str(folder / model.model) if folder else model.model) if model else ""
        for model in (resolved.target, resolved.drafter)
    )
    return _Models(target, drafter, script, folder)


def _shipped_drafter(recipe: Recipe) -> Path | None:
    """Return the file of a shipped drafter's weights, whether it is there or not; None where none is shipped."""
    folder = recipe.build.drafter if recipe.build else None
    return paths.bundled_folder("recipes") / folder / "model.safetensors" if folder else None


def _find_missing_drafter(resolved: ResolvedRecipe) -> Path | None:
    """Return the weights that a build needs for the drafter and does not have; None where none are missing."""
    recipe, weights = resolved.recipe, _shipped_drafter(resolved.recipe)
    if weights is None or weights.is_file() or not (resolved.drafter and recipe.drafter):
        return None
    return weights if resolved.drafter.model == recipe.drafter.model else None


@cache
def _digest_sources(script: Path, drafter: Path | None) -> str:
    """Return a digest of all that models are built from."""
    sources = [script, script.with_suffix(".txt"), *([drafter.with_name("config.json"), drafter] if drafter else [])]
    return _digest(b"".join(source.read_bytes() for source in sources if source.is_file()))


def _build_command_parts(launch: _Launch, models: _Models, patches: PatchSelection, port: int) -> CommandParts:
    """Return the words of the command, apart from those of a rank."""
    resolved = launch.resolved
    speculation: tuple[str, ...] = ()
    if launch.tokens:
        config = build_speculation(resolved, models.drafter, launch.tokens, patches.speculation)
        speculation = ("--speculative-config", json.dumps(config))
    revision = build_revision("--revision", resolved.target.revision)
    return CommandParts(
        program=(str(launch.engine_folder / "bin" / "vllm"), "serve", models.target, *revision),
        api=build_api_flags(resolved.target.served_name, resolved.host, port),
        speculation=speculation,
        flags=(
            *(["--enforce-eager"] if launch.mode is Mode.EAGER else []),
            *(part for name, value in resolved.flags.items() for part in build_flag(name, value)),
        ),
    )


def _explain(plan: Plan, launch: _Launch, patches: PatchSelection) -> Plan:
    """Return the plan with all that is said of it: doubts, reasons, and what others measured."""
    resolved, asked_port = launch.resolved, plan.request.port if plan.request else None
    unsaid = {*patches.skipped, *resolved.disabled_patches, *(("port",) if asked_port else ())}
    return replace(
        plan,
        warnings=_list_warnings(resolved, launch.mode, patches, speculative=bool(launch.tokens)),
        standing=resolved.standing,
        deviations={name: why for name, why in resolved.deviations.items() if name not in unsaid},
        skipped_patches=patches.skipped,
        disabled_patches=resolved.disabled_patches,
        expected=_list_expected(resolved, launch),
        start=launch.measures.used,
        start_left_out=launch.measures.left_out,
    )


def _list_expected(resolved: ResolvedRecipe, launch: _Launch) -> tuple[ExpectedFigures, ...]:
    """Return what others measured, ordered for this launch; nothing for models that were named by hand."""
    return resolved.expected and resolution.list_expected(
        resolved.recipe,
        resolved.hardware,
        profile=resolved.profile,
        variant=resolved.variant,
        method=launch.method,
        mode=launch.mode,
        tokens=launch.tokens,
    )


def list_models(resolved: ResolvedRecipe, tokens: int) -> tuple[PlannedModel, ...]:
    """Return the models that a launch with as many drafted tokens fetches; none where a script builds them."""
    if resolved.recipe.build:
        return ()
    target, drafter = resolved.target, resolved.drafter
    needed = [PlannedModel(target.model, target.revision, target.size_gb, target.gated)]
    if tokens and drafter:
        needed.append(PlannedModel(drafter.model, drafter.revision, drafter.size_gb, drafter.gated))
    return tuple(needed)


def _list_warnings(
    resolved: ResolvedRecipe, mode: Mode, patches: PatchSelection, *, speculative: bool
) -> tuple[str, ...]:
    """Return what somebody should know before the launch, the standing and the mode included."""
    drafter = resolved.drafter if speculative else None
    warnings = [*resolved.target.warnings, *(drafter.warnings if drafter else ()), *resolved.warnings]
    missing = _find_missing_drafter(resolved)
    warnings += [f"no speculation: the drafter's weights are missing: {missing}"] if missing else []
    if resolved.standing.status in {Status.EXPERIMENTAL, Status.BROKEN}:
        warnings.insert(0, f"{resolved.standing.status.value}: {resolved.standing.why}")
    if mode is Mode.GRAPHS and not cuda_graphs.is_measured(resolved):
        warnings.append(f"graphs mode was not measured on {resolved.hardware.value} with this recipe")
    elif resolved.modes and mode not in resolved.modes and mode is not Mode.GRAPHS:
        warnings.append(f"the recipe does not mention mode {mode.value}, only {', '.join(resolved.modes)}")
    if package := methods.FACTS[resolved.method].package:
        warnings.append(f"{resolved.method} needs the package {package} in the engine")
    if not ip_address(resolved.host).is_loopback:
        warnings.append(_OPEN.format(resolved.host))
    if resolved.hosts > 1:
        warnings.append(_JOINED.format(resolved.hosts))
    warnings += patch_selection.list_defects(resolved, patches) if speculative else []
    for patch in patches.applied:
        if patch.experimental:
            warnings.append(f"the patch {patch.name} is experimental: {' '.join(patch.why.split()).partition('. ')[0]}")
        if patch.without_patch:
            way = " ".join(f"--set env.{name}={value}" for name, value in patch.without_patch.env.items())
            without = f"--set patches.{patch.name}=false {way}"
            warnings.append(f"{patch.name} is applied; without a patch: {without} ({patch.without_patch.why})")
    return tuple(warnings)


def engine_folder_for(spec: EngineSpec) -> Path:
    """Return the folder of the engine for `spec`; another spec has another folder."""
    installs: tuple[object, ...]
    installs = (spec.vllm, spec.packages, spec.overrides, spec.torch_backend, spec.exclude_newer, spec.stands_in)
    installs += (spec.source_builds,) * spec.source_builds  # engines of before keep their folders
    return paths.engines_folder() / f"{spec.distribution}-{spec.vllm}-{_digest(msgspec.json.encode(installs))}"


def patched_folder_for(base: Path, patches: Iterable[Patch], state: str = "") -> Path:
    """Return the folder of the engine that is made from the one in `base` with `patches`; other edits have another.

    Args:
        base: The folder of the engine without them.
        patches: The patches that are added.
        state: A digest of what is in `base` now, where that may change.
    """
    edits = sorted((patch.name, patch.digest) for patch in patches)
    ours = base.parent == paths.engines_folder()
    name = base.name if ours else f"{base.name}-{_digest(f'{base} {state}'.encode())}"
    return paths.engines_folder() / f"{name}-patched-{_digest(msgspec.json.encode(edits))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
