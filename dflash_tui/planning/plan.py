"""The plan of a launch as a value: command, environment, patches and models. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from dflash_tui.common.untrusted_json import decode_json
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.cluster import Cluster, RankCommand
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode, RestartPolicy, SetUp, Trust
from dflash_tui.planning.recipes.resolution import HOST, ExpectedFigures
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.planning.serve_flags import parse_whole_number

# Text shown in one line. Longer than any planned one, since records may come from others.
_Line = Annotated[str, msgspec.Meta(max_length=5000)]


class PlannedModel(msgspec.Struct, frozen=True):
    """A model that a plan needs: a repository of the hub at a revision, or a folder."""

    name: str
    revision: str = "main"
    size_gb: float | None = None
    gated: bool | None = None


class Plan(msgspec.Struct, frozen=True):
    """What a launch will do: command, environment, patches and models. Paths are absolute."""

    recipe: _Line
    title: _Line
    synthetic: _Line
    """Why its figures say nothing about a real model, such as random weights; empty if they do."""
    mode: Mode
    target: _Line
    """The target: a repository of the hub, or a folder."""
    drafter: _Line
    """The drafter; empty without one."""
    num_speculative_tokens: int
    """Drafted tokens per step; 0 is without speculation."""
    served_name: _Line
    """The target's name for clients."""
    port: int
    engine_folder: str
    """The folder of the vLLM environment."""
    argv: tuple[str, ...]
    env: dict[str, str]
    """Variables added to the environment of the launching process."""
    patches: tuple[str, ...]
    """The patches that this release needs on this hardware."""
    build_script: str = ""
    """The script that builds the models; empty if they are not built."""
    models_folder: str = ""
    """The folder that the models are built in; empty if they are not built."""
    bench_scale: float = 1.0
    """Factor for the lengths of answers in a benchmark."""
    on_cpu: bool = False
    warnings: tuple[str, ...] = ()
    """Sentences shown before the launch."""
    profile: _Line = ""
    variant: _Line = ""
    """The recipe's variant; empty without one."""
    vllm: str = ""
    hardware: Hardware = Hardware.CPU
    """The class of GPUs that it is planned for."""
    gpus: tuple[str, ...] = ()
    """UUIDs of the GPUs that the server sees; empty on the CPU, and for a class that this machine lacks."""
    standing: Trust | None = None
    """How well the recipe is known to work on this hardware."""
    deviations: dict[str, str] = {}
    """Why the recipe deviates from the published setup, by aspect."""
    models: tuple[PlannedModel, ...] = ()
    """The models to download; empty if they are built."""
    driver: str = ""
    """The oldest driver that the engine runs with."""
    skipped_patches: dict[str, str] = {}
    """The recipe's other patches: name -> why it is not needed."""
    disabled_patches: tuple[str, ...] = ()
    """The patches that the user disabled."""
    request: LaunchRequest | None = None
    """The user's request; None if there was none, and in the oldest records."""
    expected: tuple[ExpectedFigures, ...] = ()
    """Published figures, the set-up nearest to this launch first."""
    host: str = HOST
    restart: RestartPolicy = RestartPolicy()
    """How often it is launched again after a crash."""
    method: Method = Method.DFLASH
    """The method; `none` without speculation. Plans older than this field used DFlash."""
    start: tuple[str, ...] = ()
    """Names of the startup optimizations that it uses."""
    start_left_out: dict[str, str] = {}
    """Default startup optimizations that it does not use: name -> why."""
    cluster: Cluster | None = None
    """The hosts of a server over several; None for one host."""
    rank: int = 0
    """The rank that this plan's own command is for."""
    ranks: tuple[RankCommand, ...] = ()
    """The commands of rank 1 and further; their hosts' own plans may name other folders."""
    set_up: SetUp = SetUp.PUBLISHED
    base_folder: str = ""
    """The engine that `engine_folder` was made from with the patches; empty if no patch is added."""

    def __post_init__(self) -> None:
        ip_address(self.host)  # plans are also read from others' recordings

    @property
    def unpatched_folder(self) -> str:
        """The engine without the plan's patches, shared by launches with and without them."""
        return self.base_folder or self.engine_folder

    @property
    def relaunch_request(self) -> LaunchRequest:
        """The request that gives this plan again: the user's, or one rebuilt from the plan."""
        return self.request or LaunchRequest(
            recipe=self.recipe,
            profile=self.profile or None,
            variant=self.variant or None,
            mode=self.mode,
            port=self.port,
            num_speculative_tokens=self.num_speculative_tokens,
        )

    @property
    def placed_request(self) -> LaunchRequest:
        """The request that gives this plan again, on the same hosts and link."""
        return replace(self.relaunch_request, cluster=self.cluster)

    @property
    def is_open(self) -> bool:
        """Whether other machines can connect, so that the server needs an API key."""
        return not ip_address(self.host).is_loopback

    @property
    def kind(self) -> tuple[str, ...]:
        """The key of similar launches, whose times predict each other."""
        own: tuple[str, ...] = () if self.method in {Method.DFLASH, Method.NONE} else (self.method.value,)
        own += (self.split,) if self.split else ()
        models = (self.target, self.drafter, str(self.num_speculative_tokens), *own)
        return (self.recipe, self.profile, self.variant, self.mode.value, self.unpatched_folder, *models)

    @property
    def accepts_synthetically(self) -> bool:
        """Whether vLLM accepts tokens at a configured rate, so that advice on the drafts is meaningless."""
        return any(word.startswith("{") and '"synthetic' in word for word in self.argv)

    @property
    def split(self) -> str:
        """The ranks and hosts that the server is split over, as text; empty for one rank."""
        sizes = (self.find_flag(f"{of}-parallel-size") for of in ("tensor", "pipeline", "data"))
        parts = math.prod(parse_whole_number(size or "") or 1 for size in sizes)
        hosts = len(self.cluster.hosts) if self.cluster else 1
        if max(parts, hosts) == 1:
            return ""
        return f"{parts} ranks" + (f" on {hosts} hosts" if hosts > 1 else "")

    def find_flag(self, name: str) -> str | None:
        """Return the word after the last `--name` in the command; None without one."""
        value = None
        for word, after in pairwise((*self.argv, "")):
            flag, equals, joined = word.partition("=")
            if flag == f"--{name}":
                value = joined if equals else after
        return value

    @property
    def context(self) -> int | None:
        """Tokens of a prompt and its answer together; None if the command gives no number."""
        return parse_whole_number(self.find_flag("max-model-len") or "")

    @property
    def most_requests(self) -> int | None:
        """Requests that the server runs at once; None if the command gives no number."""
        return parse_whole_number(self.find_flag("max-num-seqs") or "")

    def disturbs(self, other: Plan) -> bool:
        """Whether both servers would use the CPU, or share a GPU; a plan without named GPUs uses all of them."""
        if self.on_cpu or other.on_cpu:
            return self.on_cpu and other.on_cpu
        return not self.gpus or not other.gpus or bool({*self.gpus} & {*other.gpus})


# Variables of the compile caches of vLLM, Inductor, Triton and FlashInfer, and their subfolders.
_CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
# Replaces the cache folder in reports: it differs per arm and makes no difference.
OWN_CACHE = "{own cache}"


class ArmCache(msgspec.Struct, frozen=True):
    """The compile caches that an arm of an experiment has to itself on each host."""

    arm: Annotated[int, Meta(ge=0, le=999)]
    """The arm's index in the experiment."""
    is_fresh: bool
    """Whether the caches must be empty; else the boot reuses what earlier boots compiled."""


def separate_caches(plan: Plan, settings: Collection[str], folder: Path | str) -> Plan:
    """Return the plan with all caches inside `folder`, except those that `settings` name."""
    own = {name: str(Path(folder) / part) for name, part in _CACHES.items() if f"env.{name}" not in settings}
    return replace(plan, env=plan.env | own)


def format_command(plan: Plan, *, brief: bool = False) -> str:
    """Return the command as typed into a shell; for several hosts, the command of each rank.

    With `brief`, ranks after rank 1 show only the lines that differ from it.
    """
    if not plan.ranks:
        return _format_rank(plan.argv, plan.env)
    commands = [RankCommand("this machine", plan.argv, plan.env), *plan.ranks]
    lines: list[str] = []
    first = _format_rank(commands[1].argv, commands[1].env).splitlines()
    for number, its in enumerate(commands):
        command = _format_rank(its.argv, its.env)
        own = [line.removesuffix("\\").strip() for line in command.splitlines() if line not in first]
        title = f"# rank {number}, on {its.host}"
        lines += [f"{title}: as rank 1, with {' '.join(own)}"] if brief and number > 1 else [title, command]
    return "\n".join(lines)


def _format_rank(argv: Sequence[str], env: Mapping[str, str]) -> str:
    words = list(argv)
    lines = [shlex.join(words[:3])]
    for word in words[3:]:
        if word.startswith("--"):
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n  ".join([*(f"{k}={shlex.quote(v)}" for k, v in env.items()), *lines])


T = TypeVar("T")
_RENAMED = {"unneeded": "skipped_patches", "unpatched": "disabled_patches", "differs": "deviations"}
# Keys that a plan or an arm had before 2026-11-22, and an old label that repeats itself; records without them need no
# upgrade.
_EARLIER = re.compile(
    rb'"(?:asked|options|unneeded|unpatched|differs)"\s*:|synthetic acceptance[^"]*; synthetic acceptance"'
)

_UNTYPED: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def decode_record(data: bytes, decoder: msgspec.json.Decoder[T], upgrade: Callable[[Any], Any]) -> T:
    """Return a record of others or an earlier release in the current form; raise MsgspecError if it is invalid."""
    if not _EARLIER.search(data):
        return decode_json(data, decoder)
    record: T = msgspec.convert(upgrade(decode_json(data, _UNTYPED)), decoder.type, str_keys=True)
    return record


def upgrade_plan(fields: Any) -> Any:
    """Return a plan's JSON fields under their current names."""
    if not isinstance(fields, dict):
        return fields
    plan = {_RENAMED.get(name, name): value for name, value in fields.items() if name != "asked"}
    if options := fields.get("asked"):
        named = {"": fields.get("recipe"), **options} if isinstance(options, dict) else options
        plan["request"] = upgrade_options(named)
    if isinstance(label := plan.get("synthetic"), str):
        plan["synthetic"] = upgrade_label(label)
    return plan


def upgrade_label(label: str) -> str:
    """Return a label of synthetic figures without parts that repeat an earlier part."""
    parts = label.split("; ")
    return "; ".join(part for place, part in enumerate(parts) if not any(part in before for before in parts[:place]))


def upgrade_options(options: Any) -> Any:
    """Return the JSON fields of a request from a mapping of `up` options."""
    return msgspec.to_builtins(LaunchRequest.from_options(msgspec.convert(options, dict[str, str])))


def upgrade_record(fields: Any) -> Any:
    """Return the JSON fields of a record with its plan upgraded."""
    return {**fields, "plan": upgrade_plan(fields["plan"])} if isinstance(fields, dict) and "plan" in fields else fields
