"""The plan of a launch, as a value: the exact command, environment, patches and models. Pure."""

import math
from ipaddress import ip_address
from itertools import pairwise
from typing import Annotated

import msgspec

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.cluster.hosts import Cluster, RankCommand
from dflash_tui.planning.flag_values import parse_whole_number
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.published_figures import ExpectedFigures
from dflash_tui.planning.recipes.recipe import Mode, RestartPolicy, Trust
from dflash_tui.planning.recipes.settings import HOST
from dflash_tui.planning.request import LaunchRequest

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
    """The recipe's name."""
    title: _Line
    """The recipe's title."""
    synthetic: _Line
    """Why figures say nothing about a real model, such as random weights; empty where they do."""
    mode: Mode
    """Eager, graphs or compile."""
    target: _Line
    """The model that is served: a repository of the hub, or a folder."""
    drafter: _Line
    """The model that drafts; empty without one."""
    num_speculative_tokens: int
    """Tokens that the drafter proposes per step; 0 is without speculation."""
    served_name: _Line
    """The model's name for clients."""
    port: int
    """The port that the server listens on."""
    engine_folder: str
    """The vLLM environment: one that we install or make, or one of the user's."""
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
    profile: _Line = ""
    """The recipe's profile."""
    variant: _Line = ""
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
    expected: tuple[ExpectedFigures, ...] = ()
    """What others measured, nearest to this launch first."""
    host: str = HOST
    """The address that the server listens on."""
    restart: RestartPolicy = RestartPolicy()
    """Whether and how often it is launched again after a crash."""
    method: Method = Method.DFLASH
    """How tokens are drafted; `none` without speculation. Plans of before the field are of DFlash."""
    start: tuple[str, ...] = ()
    """The measures for a shorter start that it takes, by name."""
    start_left_out: dict[str, str] = {}
    """Those that it would take, and why it does not."""
    cluster: Cluster | None = None
    """The hosts that serve it together; None for one."""
    rank: int = 0
    """Which of them this plan's own command is for."""
    ranks: tuple[RankCommand, ...] = ()
    """What the others run, from rank 1 on; their own plans may have other folders in it."""
    base_folder: str = ""
    """The engine that the one in `engine_folder` is made from with the patches; empty where no patch is added."""

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

    def disturbs(self, other: "Plan") -> bool:
        """Whether servers of both would compute on the same: the CPU, or a GPU; without any named it is all of them."""
        if self.on_cpu or other.on_cpu:
            return self.on_cpu and other.on_cpu
        return not self.gpus or not other.gpus or bool({*self.gpus} & {*other.gpus})
