"""The command of a server: the words and variables of `vllm serve` on each host, and as one types them. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from packaging.version import Version

from dflash_tui.common import paths
from dflash_tui.planning import startup_optimizations
from dflash_tui.planning.cluster import Cluster, RankCommand, build_rank_environment, build_rank_flags
from dflash_tui.planning.field_types import FlagValue
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.resolution import ResolvedRecipe
from dflash_tui.planning.serve_flags import build_flag

# What every plan has beside what a recipe says, and why.
OURS = {
    "host": "we bind to this machine only",
    "port": "any free port will do",
    "served-model-name": "a short name for clients",
    # Asked once a second, these would make up most of the log; the flag is in every release that has DFlash.
    "disable-access-log-for-endpoints": "/health and /metrics are asked once a second",
} | {name: measure.does for measure in startup_optimizations.MEASURES.values() for name in measure.env}
_QUIET = ("--disable-access-log-for-endpoints", "/health,/metrics")


class CommandParts(NamedTuple):
    """The words of a server's command, in their order."""

    program: tuple[str, ...]
    """The program, and the model that it serves."""
    api: tuple[str, ...]
    """Those of the API, which rank 0 alone has."""
    speculation: tuple[str, ...]
    """How tokens are drafted; empty without speculation."""
    flags: tuple[str, ...]
    """All others."""


def build_api_flags(served_name: str, host: str, port: int) -> tuple[str, ...]:
    """Return the words that make the server listen."""
    return ("--served-model-name", served_name, "--host", host, "--port", str(port))


def build_rank_commands(
    resolved: ResolvedRecipe, cluster: Cluster | None, parts: CommandParts, patch_env: Mapping[str, str]
) -> tuple[RankCommand, ...]:
    """Return what each rank runs; without a cluster that is one command.

    Args:
        resolved: The recipe for one kind of machine.
        cluster: The hosts.
        parts: The words of the command.
        patch_env: Variables that do without patches.
    """
    first = (*parts.program, *parts.api, *parts.speculation, *_QUIET, *parts.flags)
    other = (*parts.program, *parts.speculation, *parts.flags)
    cache = str(paths.cache_folder())
    env = {**patch_env, **{name: value.replace("{cache}", cache) for name, value in resolved.env.items()}}
    if cluster is None:
        return (RankCommand("", first, env),)
    ranks = []
    for rank, endpoint in enumerate(cluster.hosts):
        flags = build_rank_flags(cluster, rank, resolved.flags)
        own = (part for name, value in flags.items() for part in build_flag(name, value))
        variables = build_rank_environment(cluster, rank, env, on_cpu=resolved.recipe.for_cpu)
        ranks.append(RankCommand(endpoint.host, (*(other if rank else first), *own), variables))
    return tuple(ranks)


def count_gpus_needed(flags: Mapping[str, FlagValue]) -> int:
    """Return how many GPUs a server with these flags takes: tensor times pipeline times data parallelism."""
    count = 1
    for kind in ("tensor", "pipeline", "data"):
        size = flags.get(f"{kind}-parallel-size", 1)
        count *= size if isinstance(size, int) and size > 0 else 1
    return count


def count_gpus_per_host(resolved: ResolvedRecipe) -> int:
    """Return how many GPUs a server takes on each of its hosts."""
    return max(1, count_gpus_needed(resolved.flags) // resolved.hosts)


def build_gpu_variables(gpus: Sequence[tuple[int, str]], vllm: str) -> dict[str, str]:
    """Return the variables that show a server these GPUs only.

    By UUID, which nothing can reorder; before 0.24 vLLM takes indices only (platforms/interface.py), and NVML's are
    those of the PCI bus.
    """
    if not gpus:
        return {}
    by_uuid = Version(vllm) >= Version("0.24.0")
    names = [uuid if by_uuid else str(index) for index, uuid in gpus]
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(names)}


def build_speculation(
    resolved: ResolvedRecipe, drafter: str, tokens: int, further: Mapping[str, object]
) -> dict[str, object]:
    """Return the speculative-config, with the further keys for this release."""
    model = {"model": drafter} if drafter else {}
    words: dict[str, object] = {"method": resolved.method.value, **model, "num_speculative_tokens": tokens}
    if resolved.drafter and resolved.drafter.revision != "main":
        words["revision"] = resolved.drafter.revision
    return {**words, **{key: value for key, value in further.items() if key not in words}}


def build_revision(name: str, revision: str) -> list[str]:
    """Return the flag of a revision; none for the newest."""
    return [] if revision == "main" else [name, revision]


def format_command(plan: Plan) -> str:
    """Return the command as one would type it into a shell; of a server over several hosts the one of each rank."""
    if not plan.ranks:
        return _format_rank(plan.argv, plan.env)
    ranks = [RankCommand("this machine", plan.argv, plan.env), *plan.ranks]
    return "\n".join(
        f"# rank {number}, on {rank.host}\n{_format_rank(rank.argv, rank.env)}" for number, rank in enumerate(ranks)
    )


def _format_rank(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """Return a command as one would type it into a shell, one flag per line."""
    words = list(argv)
    lines = [shlex.join(words[:3])]
    for word in words[3:]:
        if word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join([*(f"{k}={shlex.quote(v)}" for k, v in env.items()), *lines])
