"""A resolved recipe -> the plan of a launch: the exact command, environment, patches and models. Pure."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path

import msgspec
from packaging.version import Version

from dflash_tui.common import paths
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning import cuda_graphs, patch_applicability, powers
from dflash_tui.planning import patch_file as patch_files
from dflash_tui.planning import resolution as setups
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.powers import Power
from dflash_tui.planning.recipe import (
    EngineSpec,
    FlagValue,
    Mode,
    PublishedFigures,
    Recipe,
    RestartPolicy,
    Status,
    Trust,
)
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.planning.resolution import ResolvedRecipe

HOST = setups.HOST
# What every plan has beside what a recipe says, and why.
OURS = {
    "host": "we bind to this machine only",
    "port": "any free port will do",
    "served-model-name": "a short name for clients",
    # Asked once a second, these would make up most of the log; the flag is in every release that has DFlash.
    "disable-access-log-for-endpoints": "/health and /metrics are asked once a second",
}
_OPEN = (
    "it listens on {}: other machines can send requests with the key in VLLM_API_KEY, and read /metrics without; "
    "nothing is encrypted"
)
_QUIET = ("--disable-access-log-for-endpoints", "/health,/metrics")


class PlannedModel(msgspec.Struct, frozen=True):
    """A model that a plan needs: a hub repository at a revision, or a folder."""

    name: str
    revision: str = "main"
    size_gb: float | None = None
    gated: bool | None = None


class Plan(msgspec.Struct, frozen=True):
    """What a launch will do: the exact command, environment, patches and models. Paths are absolute."""

    recipe: str
    """The recipe's name."""
    title: str
    """The recipe's title."""
    synthetic: str
    """Why figures say nothing about a real model, such as random weights; empty where they do."""
    mode: Mode
    """Eager, graphs or compile."""
    target: str
    """The model that is served: a repository of the hub, or a folder."""
    drafter: str
    """The model that drafts; empty without speculation."""
    num_speculative_tokens: int
    """Tokens that the drafter proposes per step; 0 is without speculation."""
    served_name: str
    """The model's name for clients."""
    port: int
    """The port that the server listens on."""
    engine_folder: str
    """The vLLM environment: one that we install, or one of the user's."""
    argv: tuple[str, ...]
    """The command."""
    env: dict[str, str]
    """What is added to the environment of whoever launches it."""
    patches: tuple[str, ...]
    """The patches that this release needs on this hardware."""
    build_script: str = ""
    """The script that builds the models; empty when they come from elsewhere."""
    models_folder: str = ""
    """The folder that they are built in; empty when they come from elsewhere."""
    bench_scale: float = 1.0
    """How many times their usual length the answers of a benchmark have."""
    on_cpu: bool = False
    """Whether it runs on the CPU."""
    warnings: tuple[str, ...] = ()
    """What somebody should know before the launch, a sentence each."""
    profile: str = ""
    """The recipe's profile."""
    variant: str = ""
    """The recipe's variant; empty without one."""
    vllm: str = ""
    """The release of vLLM."""
    hardware: Hardware = Hardware.CPU
    """The class of the GPUs that it is planned for."""
    gpus: tuple[str, ...] = ()
    """The UUIDs of the GPUs that the server sees; empty on the CPU, and for a class that is not here."""
    standing: Trust | None = None
    """How far the recipe is known to work on this hardware."""
    deviations: dict[str, str] = {}
    """By name, what was published otherwise and why the recipe deviates from it."""
    models: tuple[PlannedModel, ...] = ()
    """The models to fetch; none where they are built."""
    driver: str = ""
    """The oldest driver that the engine runs with."""
    skipped_patches: dict[str, str] = {}
    """The recipe's other patches, and why each is not needed."""
    disabled_patches: tuple[str, ...] = ()
    """The patches that the user left out."""
    request: LaunchRequest | None = None
    """What the user asked for; None of a plan that nobody asked for, and of the oldest records."""
    expected: tuple[PublishedFigures, ...] = ()
    """What others measured."""
    host: str = HOST
    """The address that the server listens on."""
    restart: RestartPolicy = RestartPolicy()
    """Whether and how often it is launched again after a crash."""
    powers: tuple[Power, ...] = ()
    """What it may do beyond serving a model."""

    @property
    def relaunch_request(self) -> LaunchRequest:
        """What to ask for to get this plan again: what was asked for, else what can be told from the plan."""
        return self.request or LaunchRequest(
            recipe=self.recipe,
            profile=self.profile or None,
            variant=self.variant or None,
            mode=self.mode,
            port=self.port,
            num_speculative_tokens=self.num_speculative_tokens,
        )

    @property
    def is_open(self) -> bool:
        """Whether other machines can connect to it, and so whether it asks for a key."""
        return not ip_address(self.host).is_loopback or any(power.is_open for power in self.powers)

    @property
    def kind(self) -> tuple[str, ...]:
        """What makes two launches alike: the times of one tell about the other."""
        models = (self.target, self.drafter, str(self.num_speculative_tokens))
        return (self.recipe, self.profile, self.variant, self.mode.value, self.engine_folder, *models)

    def disturbs(self, other: Plan) -> bool:
        """Whether servers of both would compute on the same: the CPU, or a GPU; without any named it is all of them."""
        if self.on_cpu or other.on_cpu:
            return self.on_cpu and other.on_cpu
        return not self.gpus or not other.gpus or bool({*self.gpus} & {*other.gpus})


def build_plan(
    setup: ResolvedRecipe,
    *,
    mode: Mode | None = None,
    port: int | None = None,
    num_speculative_tokens: int | None = None,
    gpus: Sequence[tuple[int, str]] = (),
    engine: Path | None = None,
    patchable: bool = True,
    request: LaunchRequest | None = None,
) -> Plan:
    """Return the plan of launching a recipe; arguments that are given replace what it says.

    Args:
        setup: The recipe for one kind of machine.
        mode: Eager, graphs or compile.
        port: The port.
        num_speculative_tokens: Tokens that the drafter proposes per step.
        gpus: Index and UUID of each GPU that the server sees; all of them when empty.
        engine: The folder of another environment.
        patchable: Whether the environment may be patched.
        request: What the user asked for, to be kept with the plan.

    Raises:
        UsageError: there is no patch of a name that was set by hand, or graphs mode cannot be had with what is set.
    """
    recipe = setup.recipe
    mode = mode or setup.mode
    port = port or recipe.port
    tokens = setup.num_speculative_tokens if num_speculative_tokens is None else num_speculative_tokens
    setup = cuda_graphs.apply_graphs_mode(setup, tokens) if mode is Mode.GRAPHS else setup
    folder = engine or engine_folder_for(setup.engine)
    script, built = _find_build(recipe)
    target, drafter = (str(built / model.model) if built else model.model for model in (setup.target, setup.drafter))
    patches, skipped, instead = _choose_patches(setup, patchable=patchable)
    argv = [str(folder / "bin" / "vllm"), "serve", target]
    argv += _build_revision("--revision", setup.target.revision)
    argv += ["--served-model-name", setup.target.served_name, "--host", setup.host, "--port", str(port)]
    if tokens:
        argv += ["--speculative-config", json.dumps(_build_speculation(setup, drafter, tokens, patches))]
    argv += _QUIET
    argv += ["--enforce-eager"] if mode is Mode.EAGER else []
    argv += [part for name, value in setup.flags.items() for part in build_flag(name, value)]
    env = instead | {name: value.replace("{cache}", str(paths.cache_folder())) for name, value in setup.env.items()}
    env |= _build_gpu_variables(gpus, setup.engine.vllm)
    return Plan(
        recipe=recipe.name,
        title=recipe.title,
        synthetic=setup.synthetic,
        mode=mode,
        target=target,
        drafter=drafter if tokens else "",
        num_speculative_tokens=tokens,
        served_name=setup.target.served_name,
        port=port,
        engine_folder=str(folder),
        argv=tuple(argv),
        env=env,
        patches=tuple(patch.name for patch in patches),
        build_script=str(script or ""),
        models_folder=str(built or ""),
        bench_scale=recipe.bench_scale,
        on_cpu=recipe.for_cpu,
        warnings=_list_warnings(setup, mode, patches),
        profile=setup.profile,
        variant=setup.variant,
        vllm=setup.engine.vllm,
        hardware=setup.hardware,
        gpus=tuple(uuid for _, uuid in gpus),
        standing=setup.standing,
        deviations=setup.deviations,
        models=() if recipe.build else _list_models(setup, tokens),
        driver=setup.engine.driver,
        skipped_patches=skipped,
        disabled_patches=setup.disabled_patches,
        request=request,
        expected=setup.expected,
        host=setup.host,
        restart=setup.restart,
        powers=powers.list_powers(
            setup.engine.vllm,
            flags=setup.flags,
            env=setup.env,
            speculation=setup.speculation,
            engine=None if engine else setup.engine,  # what is in another environment is not installed by us
        ),
    )


def _find_build(recipe: Recipe) -> tuple[Path | None, Path | None]:
    """Return the script that builds the recipe's models, and the folder they are built in; another script, another."""
    if recipe.build is None:
        return None, None
    script = paths.bundled_folder("recipes") / recipe.build.script
    return script, paths.models_folder() / f"{recipe.name}-{_digest(script.read_bytes())}"


def _choose_patches(setup: ResolvedRecipe, *, patchable: bool) -> tuple[list[Patch], dict[str, str], dict[str, str]]:
    """Return the patches to apply, why each other one is not, and the variables that do without one."""
    spec = setup.engine
    build = patch_applicability.assume_index_cuda(
        patch_applicability.describe_build(spec.distribution, spec.vllm, spec.packages, spec.torch_backend)
    )
    for name in setup.disabled_patches:
        patch_files.load_patch(name)  # raises for a name that is none
    patches = {name: patch_files.load_patch(name) for name in setup.patches}
    reasons = {
        name: patch_applicability.explain_not_needed(patch, build, setup.hardware) for name, patch in patches.items()
    }
    left_out = {name: why for name, why in reasons.items() if why}
    for name, patch in patches.items():
        if name not in left_out and patch.instead_of in patches:
            left_out[patch.instead_of] = f"{name} is its alternative"
    env: dict[str, str] = {}
    for name, patch in patches.items():
        if name not in left_out and patch.without_patch and not patchable:
            env |= patch.without_patch.env
            way = " and ".join(patch.without_patch.env)
            left_out[name] = f"{way} instead, since this environment may not be patched; {patch.without_patch.why}"
    return [patch for name, patch in patches.items() if name not in left_out], left_out, env


def count_gpus_needed(flags: Mapping[str, FlagValue]) -> int:
    """Return how many GPUs a server with these flags takes: tensor times pipeline times data parallelism."""
    count = 1
    for kind in ("tensor", "pipeline", "data"):
        size = flags.get(f"{kind}-parallel-size", 1)
        count *= size if isinstance(size, int) and size > 0 else 1
    return count


def _build_gpu_variables(gpus: Sequence[tuple[int, str]], vllm: str) -> dict[str, str]:
    """Return the variables that show a server these GPUs only.

    By UUID, which nothing can reorder; before 0.24 vLLM takes indices only (platforms/interface.py), and NVML's are
    those of the PCI bus.
    """
    if not gpus:
        return {}
    by_uuid = Version(vllm) >= Version("0.24.0")
    names = [uuid if by_uuid else str(index) for index, uuid in gpus]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}


def _build_speculation(setup: ResolvedRecipe, drafter: str, tokens: int, patches: Sequence[Patch]) -> dict[str, object]:
    """Return the speculative-config, without the keys that a patch stands for.

    A build that is no release keeps them: its number does not tell whether it knows a key, and all but the oldest do.
    """
    words: dict[str, object] = {"method": "dflash", "model": drafter, "num_speculative_tokens": tokens}
    if setup.drafter.revision != "main":
        words["revision"] = setup.drafter.revision
    known = patch_applicability.VllmBuild(setup.engine.distribution, setup.engine.vllm).release is not None
    dropped = {key for patch in patches if known for key in patch.stands_for}
    return words | {key: value for key, value in setup.speculation.items() if key not in dropped}


def _build_revision(name: str, revision: str) -> list[str]:
    return [] if revision == "main" else [name, revision]


def _list_models(setup: ResolvedRecipe, tokens: int) -> tuple[PlannedModel, ...]:
    target, drafter = setup.target, setup.drafter
    needed = [PlannedModel(target.model, target.revision, target.size_gb, target.gated)]
    if tokens:
        needed.append(PlannedModel(drafter.model, drafter.revision, drafter.size_gb, drafter.gated))
    return tuple(needed)


def _list_warnings(setup: ResolvedRecipe, mode: Mode, patches: Sequence[Patch]) -> tuple[str, ...]:
    """Return what somebody should know before the launch, the standing and the mode included."""
    warnings = list(setup.warnings)
    if setup.standing.status in {Status.EXPERIMENTAL, Status.BROKEN}:
        warnings.insert(0, f"{setup.standing.status.value}: {setup.standing.why}")
    if mode is Mode.GRAPHS and not cuda_graphs.is_measured(setup):
        warnings.append(f"graphs mode was not measured on {setup.hardware.value} with this recipe")
    elif setup.modes and mode not in setup.modes and mode is not Mode.GRAPHS:
        warnings.append(f"the recipe knows nothing of {mode.value}, only of {', '.join(setup.modes)}")
    if not ip_address(setup.host).is_loopback:
        warnings.append(_OPEN.format(setup.host))
    for patch in patches:
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


def format_command(plan: Plan) -> str:
    """Return the command as one would type it into a shell, one flag per line."""
    words = list(plan.argv)
    lines = [shlex.join(words[:3])]
    for word in words[3:]:
        if word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join([*(f"{k}={shlex.quote(v)}" for k, v in plan.env.items()), *lines])


def build_flag(name: str, value: FlagValue) -> list[str]:
    """Return the words of one flag: a switch for true, JSON for a mapping, several words for a list.

    A value that starts with a dash is joined to the flag: by itself vLLM would take it for another flag.
    """
    if value is True:
        return [f"--{name}"]
    if value is False:
        return [f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *value]
    word = json.dumps(value) if isinstance(value, dict) else str(value)
    return [f"--{name}={word}"] if word.startswith("-") else [f"--{name}", word]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:8]
