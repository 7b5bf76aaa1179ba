"""Build the plan of a launch from a resolved recipe: mode, models, patches, command and warnings. Pure."""

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
from packaging.version import Version

from dflash_tui.common import paths
from dflash_tui.planning import cuda_graphs, methods, patch_selection
from dflash_tui.planning.cluster import (
    Cluster,
    RankCommand,
    build_rank_environment,
    build_rank_flags,
    build_unnamed_cluster,
)
from dflash_tui.planning.methods import Method
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.patch_selection import PatchSelection
from dflash_tui.planning.plan import Plan, PlannedModel
from dflash_tui.planning.recipes.recipe import EngineSpec, Mode, Recipe, SetUp, Status
from dflash_tui.planning.recipes.resolution import ResolvedRecipe, list_expected
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.planning.serve_flags import build_flag
from dflash_tui.planning.startup_optimizations import StartConditions, choose_startup_optimizations

_OPEN = (
    "it listens on {}: other machines can send requests, some without the key in VLLM_API_KEY: vLLM checks it under "
    "/v1 and few other paths, but not for /invocations, /tokenize or /metrics; nothing is encrypted; safer is "
    "127.0.0.1 behind an ssh tunnel, or behind a reverse proxy that forwards only /v1"
)
_JOINED = "{} hosts connect over ports without a key, and data sent there can run code: keep others off the link"
_DEFAULT_CONDITIONS = StartConditions()
# Health checks once a second would fill the log; every release with DFlash has the flag.
_PIECE = 1 << 20  # bytes of a file that are hashed at once
_QUIET = ("--disable-access-log-for-endpoints", "/health,/metrics")
_FIRST_WITH_UUIDS = Version("0.24.0")


class ChosenEngine(NamedTuple):
    """The environment that the user chose, and what its files say."""

    folder: Path
    patchable: bool = True
    """Whether a patched engine can be made from it."""
    judged: Mapping[str, str] = {}
    """Why its files need no patch, by the patch's name; empty text if they need it."""
    present: Collection[str] = ()
    """The patches that it contains."""
    state: str = ""
    """A digest of the content of the user's environment; empty for one of ours, which never changes."""


class _Models(NamedTuple):
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
    conditions: StartConditions = _DEFAULT_CONDITIONS,
    rank: int = 0,
    folders: Mapping[str, str] = {},
) -> Plan:
    """Return the plan of launching a recipe; arguments that are given replace the recipe's values.

    `gpus` are index and UUID of each GPU that the server sees, all GPUs when empty. Without the request's `cluster`,
    placeholders stand for the addresses of several hosts. The plan's own command is for host `rank`; `folders` maps
    models by their name to their copies there. Raise UsageError if a patch, startup optimization or graphs mode is not
    possible.
    """
    recipe, mode = resolved.recipe, mode or resolved.mode
    resolved = _replace_models(resolved, folders)
    patches = patch_selection.select_patches(
        resolved, patchable=engine is None or engine.patchable, judged=engine.judged if engine else {}
    )
    tokens = resolved.num_speculative_tokens if num_speculative_tokens is None else num_speculative_tokens
    tokens = 0 if _find_missing_drafter(resolved) else tokens
    method = resolved.method if tokens else Method.NONE
    methods.check_release(method, resolved.engine.vllm)
    resolved = cuda_graphs.apply_mode(resolved, mode, tokens)
    base_folder = engine.folder if engine else engine_folder_for(resolved.engine)
    added = [patch for patch in patches.applied if engine is None or patch.name not in engine.present]
    is_made = bool(added) and (engine is None or engine.patchable)
    engine_folder = patched_folder_for(base_folder, added, engine.state if engine else "") if is_made else base_folder
    resolved, used, left_out = choose_startup_optimizations(resolved, mode, base_folder, conditions, patches.names)
    models = _place_models(resolved)
    named = request.cluster if request else None
    cluster = None if resolved.hosts == 1 else named or build_unnamed_cluster(resolved.hosts)
    port = port or recipe.port
    commands = _build_commands(resolved, cluster, engine_folder, models, patches, mode=mode, port=port, tokens=tokens)
    unsaid = {*patches.skipped, *resolved.disabled_patches, *(("port",) if request and request.port else ())}
    return Plan(
        recipe=recipe.name,
        title=recipe.title,
        synthetic=resolved.synthetic,
        mode=mode,
        target=models.target,
        drafter=models.drafter if tokens else "",
        num_speculative_tokens=tokens,
        served_name=resolved.target.served_name,
        port=cluster.port if cluster and rank else port,  # only rank 0 listens
        engine_folder=str(engine_folder),
        argv=commands[rank].argv,
        env=commands[rank].env | _build_gpu_variables(gpus, resolved.engine.vllm),
        patches=patches.names,
        build_script=str(models.script or ""),
        models_folder=str(models.folder or ""),
        bench_scale=recipe.bench_scale,
        on_cpu=recipe.for_cpu,
        warnings=_list_warnings(resolved, mode, patches, speculative=bool(tokens)),
        profile=resolved.profile,
        variant=resolved.variant,
        vllm=resolved.engine.vllm,
        hardware=resolved.hardware,
        gpus=tuple(uuid for _, uuid in gpus),
        standing=resolved.standing,
        deviations={name: why for name, why in resolved.differs.items() if name not in unsaid},
        models=list_models(resolved, tokens),
        driver=resolved.engine.driver,
        skipped_patches=patches.skipped,
        disabled_patches=resolved.disabled_patches,
        request=request and replace(request, cluster=None),
        expected=list_expected(resolved, method, mode, tokens),
        host=resolved.host,
        restart=resolved.restart,
        method=method,
        start=used,
        start_left_out=left_out,
        cluster=cluster,
        rank=rank,
        ranks=commands[1:] if rank == 0 else (),
        set_up=resolved.set_up,
        base_folder=str(base_folder) if base_folder != engine_folder else "",
    )


def _replace_models(resolved: ResolvedRecipe, folders: Mapping[str, str]) -> ResolvedRecipe:
    target, drafter = resolved.target, resolved.drafter
    target = replace(target, model=folders.get(target.model, target.model))
    return replace(
        resolved,
        target=target,
        drafter=replace(drafter, model=folders.get(drafter.model, drafter.model)) if drafter else None,
    )


def _place_models(resolved: ResolvedRecipe) -> _Models:
    """Return where the models are; models that a recipe builds get one folder per version of their sources."""
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
    folder = recipe.build.drafter if recipe.build else None
    return paths.bundled_folder("recipes") / folder / "model.safetensors" if folder else None


def _find_missing_drafter(resolved: ResolvedRecipe) -> Path | None:
    recipe, weights = resolved.recipe, _shipped_drafter(resolved.recipe)
    if weights is None or weights.is_file() or not (resolved.drafter and recipe.drafter):
        return None
    return weights if resolved.drafter.model == recipe.drafter.model else None


@cache
def _digest_sources(script: Path, drafter: Path | None) -> str:
    sources = [script, script.with_suffix(".txt"), *([drafter.with_name("config.json"), drafter] if drafter else [])]
    digest = hashlib.sha256()
    for source in sources:
        if source.is_file():
            with source.open("rb", buffering=0) as file:
                while piece := file.read(_PIECE):
                    digest.update(piece)
    return digest.hexdigest()[:8]


def _build_commands(
    resolved: ResolvedRecipe,
    cluster: Cluster | None,
    engine_folder: Path,
    models: _Models,
    patches: PatchSelection,
    *,
    mode: Mode,
    port: int,
    tokens: int,
) -> tuple[RankCommand, ...]:
    target = resolved.target
    program = [str(engine_folder / "bin" / "vllm"), "serve", models.target]
    program += [] if target.revision == "main" else ["--revision", target.revision]
    api = ["--served-model-name", target.served_name, "--host", resolved.host, "--port", str(port)]
    speculation = []
    if tokens:
        config = _build_speculation(resolved, models.drafter, tokens, patches.speculation)
        speculation = ["--speculative-config", json.dumps(config)]
    flags = ["--enforce-eager"] if mode is Mode.EAGER else []
    flags += [word for name, value in resolved.flags.items() for word in build_flag(name, value)]
    first, other = (*program, *api, *speculation, *_QUIET, *flags), (*program, *speculation, *flags)
    cache_folder = str(paths.cache_folder())
    env = patches.env | {name: value.replace("{cache}", cache_folder) for name, value in resolved.env.items()}
    if cluster is None:
        return (RankCommand("", first, env),)
    commands = []
    for rank, endpoint in enumerate(cluster.hosts):
        rank_flags = build_rank_flags(cluster, rank, resolved.flags)
        own = (word for name, value in rank_flags.items() for word in build_flag(name, value))
        variables = build_rank_environment(cluster, rank, env, on_cpu=resolved.recipe.for_cpu)
        commands.append(RankCommand(endpoint.host, (*(other if rank else first), *own), variables))
    return tuple(commands)


def _build_speculation(
    resolved: ResolvedRecipe, drafter: str, tokens: int, further: Mapping[str, object]
) -> dict[str, object]:
    config: dict[str, object] = {"method": resolved.method.value}
    config |= {"model": drafter} if drafter else {}
    config["num_speculative_tokens"] = tokens
    if resolved.drafter and resolved.drafter.revision != "main":
        config["revision"] = resolved.drafter.revision
    return config | {key: value for key, value in further.items() if key not in config}


def _build_gpu_variables(gpus: Sequence[tuple[int, str]], vllm: str) -> dict[str, str]:
    """Return the variables that show a server these GPUs only.

    By UUID, which no driver reorders; vLLM before 0.24 takes indices only (platforms/interface.py), and NVML counts
    them by PCI bus.
    """
    if not gpus:
        return {}
    by_uuid = Version(vllm) >= _FIRST_WITH_UUIDS
    names = [uuid if by_uuid else str(index) for index, uuid in gpus]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}


def list_models(resolved: ResolvedRecipe, tokens: int) -> tuple[PlannedModel, ...]:
    """Return the models that a launch with `tokens` drafts per step downloads; none if a script builds them."""
    if resolved.recipe.build:
        return ()
    needed = (resolved.target, resolved.drafter if tokens else None)
    return tuple(PlannedModel(each.model, each.revision, each.size_gb, each.gated) for each in needed if each)


def _list_warnings(
    resolved: ResolvedRecipe, mode: Mode, patches: PatchSelection, *, speculative: bool
) -> tuple[str, ...]:
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
        # The set-up's own line says of its patches what was measured.
        if patch.experimental and (resolved.set_up is not SetUp.FAST or f"patches.{patch.name}" in resolved.changed):
            warnings.append(f"the patch {patch.name} is experimental: {' '.join(patch.why.split()).partition('. ')[0]}")
        if patch.without_patch:
            way = " ".join(f"--set env.{name}={value}" for name, value in patch.without_patch.env.items())
            without = f"--set patches.{patch.name}=false {way}"
            warnings.append(f"{patch.name} is applied; without a patch: {without} ({patch.without_patch.why})")
    return tuple(warnings)


def engine_folder_for(spec: EngineSpec) -> Path:
    """Return the folder of the engine for `spec`, one per spec."""
    installs: tuple[object, ...]
    installs = (spec.vllm, spec.packages, spec.overrides, spec.torch_backend, spec.exclude_newer, spec.stands_in)
    installs += (spec.source_builds,) * spec.source_builds  # only if set, so that older engines keep their folders
    return paths.engines_folder() / f"{spec.distribution}-{spec.vllm}-{_digest(msgspec.json.encode(installs))}"


def patched_folder_for(base: Path, patches: Iterable[Patch], state: str = "") -> Path:
    """Return the folder of the engine made from `base` with `patches`, one per set of edits.

    `state` is a digest of the content of `base`, where it may change.
    """
    edits = sorted((patch.name, patch.digest) for patch in patches)
    ours = base.parent == paths.engines_folder()
    name = base.name if ours else f"{base.name}-{_digest(f'{base} {state}'.encode())}"
    return paths.engines_folder() / f"{name}-patched-{_digest(msgspec.json.encode(edits))}"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
