"""The plan of a launch, as a value: the exact command, environment, patches and models. Pure."""

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

# What is shown in a line; longer than any that is planned, as a record may be anybody's.
_Line = Annotated[str, msgspec.Meta(max_length=5000)]


class PlannedModel(msgspec.Struct, frozen=True):
    """A model that a plan needs: a hub repository at a revision, or a folder."""

    name: str
    revision: str = "main"
    size_gb: float | None = None
    gated: bool | None = None


class Plan(msgspec.Struct, frozen=True):
    """What a launch will do: the exact command, environment, patches and models. Paths are absolute."""

    recipe: _Line
    title: _Line
    synthetic: _Line
    """Why figures say nothing about a real model, such as random weights; empty where they do."""
    mode: Mode
    target: _Line
    """The model that is served: a repository of the hub, or a folder."""
    drafter: _Line
    """The model that drafts; empty without one."""
    num_speculative_tokens: int
    """Tokens that the drafter proposes per step; 0 is without speculation."""
    served_name: _Line
    """The model's name for clients."""
    port: int
    engine_folder: str
    """The vLLM environment: one that we install or make, or one of the user's."""
    argv: tuple[str, ...]
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
    warnings: tuple[str, ...] = ()
    """What somebody should know before the launch, a sentence each."""
    profile: _Line = ""
    variant: _Line = ""
    """The recipe's variant; empty without one."""
    vllm: str = ""
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
    expected: tuple[ExpectedFigures, ...] = ()
    """What others measured, nearest to this launch first."""
    host: str = HOST
    restart: RestartPolicy = RestartPolicy()
    """Whether and how often it is launched again after a crash."""
    method: Method = Method.DFLASH
    """How tokens are drafted; `none` without speculation. Plans of before the field are of DFlash."""
    start: tuple[str, ...] = ()
    """The startup optimizations that it takes, by name."""
    start_left_out: dict[str, str] = {}
    """Those that it would take, and why it does not."""
    cluster: Cluster | None = None
    """The hosts that serve it together; None for one."""
    rank: int = 0
    """Which of them this plan's own command is for."""
    ranks: tuple[RankCommand, ...] = ()
    """What the others run, from rank 1 on; their own plans may have other folders in it."""
    set_up: SetUp = SetUp.PUBLISHED
    base_folder: str = ""
    """The engine that the one in `engine_folder` is made from with the patches; empty where no patch is added."""

    def __post_init__(self) -> None:
        ip_address(self.host)  # a plan is also read from recordings of others

    @property
    def unpatched_folder(self) -> str:
        """The engine without the patches that the plan adds: launches with and without a patch share it."""
        return self.base_folder or self.engine_folder

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
        return not ip_address(self.host).is_loopback

    @property
    def kind(self) -> tuple[str, ...]:
        """What makes two launches alike: the times of one tell about the other."""
        own: tuple[str, ...] = () if self.method in {Method.DFLASH, Method.NONE} else (self.method.value,)
        own += (self.split,) if self.split else ()
        models = (self.target, self.drafter, str(self.num_speculative_tokens), *own)
        return (self.recipe, self.profile, self.variant, self.mode.value, self.unpatched_folder, *models)

    @property
    def split(self) -> str:
        """Over how many ranks and hosts the server is split, in words; empty for one rank."""
        sizes = (self.find_flag(f"{of}-parallel-size") for of in ("tensor", "pipeline", "data"))
        ranks = math.prod(parse_whole_number(size or "") or 1 for size in sizes)
        hosts = len(self.cluster.hosts) if self.cluster else 1
        if max(ranks, hosts) == 1:
            return ""
        return f"{ranks} ranks" + (f" on {hosts} hosts" if hosts > 1 else "")

    def find_flag(self, name: str) -> str | None:
        """Return the word after the flag `--name` of the command, where it is last; None where it is not in it."""
        value = None
        for word, after in pairwise((*self.argv, "")):
            flag, equals, joined = word.partition("=")
            if flag == f"--{name}":
                value = joined if equals else after
        return value

    @property
    def context(self) -> int | None:
        """Tokens of a prompt and its answer together; None where the command names no number."""
        return parse_whole_number(self.find_flag("max-model-len") or "")

    @property
    def most_requests(self) -> int | None:
        """Requests that the server takes at once, while others wait; None where the command names no number."""
        return parse_whole_number(self.find_flag("max-num-seqs") or "")

    def disturbs(self, other: Plan) -> bool:
        """Whether servers of both would compute on the same: the CPU, or a GPU; without any named it is all of them."""
        if self.on_cpu or other.on_cpu:
            return self.on_cpu and other.on_cpu
        return not self.gpus or not other.gpus or bool({*self.gpus} & {*other.gpus})


# What compiles at a start, and where it keeps the result: vLLM, Inductor, Triton, FlashInfer.
_CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
}
# What stands for the folder in reports, where it has the same name in every arm, since it makes no difference.
OWN_CACHE = "{own cache}"


class ArmCache(msgspec.Struct, frozen=True):
    """The caches that an arm of an experiment has for itself on each of its hosts."""

    arm: Annotated[int, Meta(ge=0, le=999)]
    """The place of the arm in the experiment."""
    is_fresh: bool
    """Whether they are to be empty; else the boot takes what those before it have compiled."""


def separate_caches(plan: Plan, settings: Collection[str], folder: Path | str) -> Plan:
    """Return the plan with all its caches in a folder; one that `settings` name, as by hand, stays as it is."""
    own = {name: str(Path(folder) / part) for name, part in _CACHES.items() if f"env.{name}" not in settings}
    return replace(plan, env=plan.env | own)


def format_command(plan: Plan, *, brief: bool = False) -> str:
    """Return the command as one would type it into a shell; of a server over several hosts the one of each rank.

    `brief` has of the ranks after rank 1 only the lines in which they differ from it.
    """
    if not plan.ranks:
        return _format_rank(plan.argv, plan.env)
    ranks = [RankCommand("this machine", plan.argv, plan.env), *plan.ranks]
    lines: list[str] = []
    first = _format_rank(ranks[1].argv, ranks[1].env).splitlines()
    for number, rank in enumerate(ranks):
        command = _format_rank(rank.argv, rank.env)
        own = [line.removesuffix("\\").strip() for line in command.splitlines() if line not in first]
        title = f"# rank {number}, on {rank.host}"
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
# Keys that a plan or an arm had before 2026-11-22, and a label of then that says a thing twice; where none is, nothing
# has to be upgraded.
_EARLIER = re.compile(
    rb'"(?:asked|options|unneeded|unpatched|differs)"\s*:|synthetic acceptance[^"]*; synthetic acceptance"'
)

_UNTYPED: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def decode_record(data: bytes, decoder: msgspec.json.Decoder[T], upgrade: Callable[[Any], Any]) -> T:
    """Return a record that others may have written, in the form of this release or of an earlier one.

    Raises:
        msgspec.MsgspecError: it is not JSON, or not what the decoder is for.
    """
    if not _EARLIER.search(data):
        return decode_json(data, decoder)
    return msgspec.convert(upgrade(decode_json(data, _UNTYPED)), decoder.type, str_keys=True)


def upgrade_plan(fields: Any) -> Any:
    """Return the JSON fields of a plan as they are called now."""
    if not isinstance(fields, dict):
        return fields
    plan = {_RENAMED.get(name, name): value for name, value in fields.items() if name != "asked"}
    if options := fields.get("asked"):
        plan["request"] = upgrade_options(
            {"": fields.get("recipe"), **options} if isinstance(options, dict) else options
        )
    if isinstance(label := plan.get("synthetic"), str):
        plan["synthetic"] = upgrade_label(label)
    return plan


def upgrade_label(label: str) -> str:
    """Return why figures are no real model's without what an earlier part says already."""
    parts = label.split("; ")
    return "; ".join(part for place, part in enumerate(parts) if not any(part in before for before in parts[:place]))


def upgrade_options(options: Any) -> Any:
    """Return a mapping of options of `up` as the JSON fields of the request that they were."""
    return msgspec.to_builtins(LaunchRequest.from_options(msgspec.convert(options, dict[str, str])))


def upgrade_record(fields: Any) -> Any:
    """Return the JSON fields of a record with a plan in it as they are called now."""
    return {**fields, "plan": upgrade_plan(fields["plan"])} if isinstance(fields, dict) and "plan" in fields else fields
