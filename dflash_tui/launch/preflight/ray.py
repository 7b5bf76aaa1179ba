"""Checks of a launch over several hosts: a Ray cluster with enough GPUs and the same vLLM on every host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from dflash_tui.common import paths
from dflash_tui.common.formatting import pluralize, truncate
from dflash_tui.common.sanitizer import join_last_lines
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.launch.preflight.check import Check, Situation, fail_check, pass_check, warn_check
from dflash_tui.machine.process_environment import build_helper_environment
from dflash_tui.planning.cluster import count_gpus_needed

_TIMEOUT = 60.0
_HOW_TO_START = "on the first host: ray start --head --port=6379; on the others: ray start --address=FIRST_HOST:6379"


class RayNode(msgspec.Struct, frozen=True):
    """One host of a cluster, its GPUs, and the vLLM that a worker finds there; empty for none."""

    host: str
    gpus: int
    vllm: str


class RayCluster(msgspec.Struct, frozen=True):
    """The nodes of the running Ray cluster, or the error that kept us from reading them."""

    nodes: tuple[RayNode, ...] = ()
    error: str = ""


register_type(RayCluster)


def check_ray(situation: Situation) -> Iterator[Check]:
    """Yield the check of the cluster, when the plan needs one."""
    flags = situation.resolved.flags
    if flags.get("distributed-executor-backend") != "ray":
        return
    needed = count_gpus_needed(flags)
    if situation.engine is None:
        finding = "not checked: the engine is not installed yet"
        yield warn_check("Ray", finding, f"install it on every host (dflash-tui engine install), then {_HOW_TO_START}")
        return
    cluster = read_ray_cluster(situation.engine.python)
    if cluster.error:
        yield fail_check("Ray", cluster.error, f"{_HOW_TO_START} (with the ray of {situation.engine.folder}/bin)")
        return
    gpus, versions = sum(node.gpus for node in cluster.nodes), sorted({node.vllm or "none" for node in cluster.nodes})
    finding = f"{pluralize(len(cluster.nodes), 'host')}, {pluralize(gpus, 'GPU')}, vLLM {', '.join(versions)}"
    if gpus < needed:
        yield fail_check("Ray", f"{finding}; the launch needs {needed} GPUs", _HOW_TO_START)
    elif len(versions) > 1 or "none" in versions:
        where = ", ".join(f"{node.host} {node.vllm or 'none'}" for node in cluster.nodes)
        yield fail_check(
            "Ray", f"{finding}: every host needs the same", f"install the same engine on every host: {where}"
        )
    else:
        yield pass_check("Ray", finding)


def read_ray_cluster(python: Path) -> RayCluster:
    """Return the running Ray cluster, read with the Ray of an engine."""
    command = [python, paths.engine_script("ray_nodes.py")]
    try:
        script = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=build_helper_environment("RAY_AUTH_"),
            cwd="/",
            timeout=_TIMEOUT,
            check=False,
        )
        return msgspec.json.decode(script.stdout.rstrip().rpartition(b"\n")[2], type=RayCluster)
    except subprocess.TimeoutExpired:
        return RayCluster(error=f"Ray has not answered for {_TIMEOUT:.0f} s")
    except OSError as error:
        return RayCluster(error=str(error))
    except msgspec.MsgspecError:
        why = truncate(join_last_lines(script.stderr.decode(errors="replace"), 1), 200) or "no output"
        return RayCluster(error=f"the engine's Python could not read the cluster: {why}")
