"""Parse `KEY=V1,V2,…` into named arms, each with its changes of the launch request. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec
import yaml
from msgspec.structs import replace
from packaging.version import Version

from dflash_tui.common import yaml_loader
from dflash_tui.common.errors import UsageError
from dflash_tui.common.secrets import advise_on_secret, find_secret
from dflash_tui.common.yaml_loader import YamlError
from dflash_tui.launch.planner import PlannedLaunch
from dflash_tui.monitoring.foreign_server import is_address
from dflash_tui.planning import cuda_graphs, patch_file, startup_optimizations
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode, SetUp
from dflash_tui.planning.request import LaunchChanges, LaunchRequest
from dflash_tui.planning.serve_flags import make_absolute

DEFAULT = "mode=eager,compile"
HOSTS, URL = "hosts", "url"
# Fields removed from a launch request for one host.
ALONE = ("peers", "link", "cluster")
_FIELDS = ("mode", "method", "set_up", "profile", "variant", "vllm", "engine")
_NAMES = {"mode": tuple(Mode), "method": tuple(Method), "set_up": tuple(SetUp)}
# Varying these would change the experiment itself, or let the arms collide.
_FIXED = frozenset({"port", "host", "gpu", "served-model-name", "served_model_name", "api-key"})
# Flags of vLLM 0.32 that only affect what its prefix cache keeps and finds.
_PREFIX_CACHE = frozenset({
    "enable-prefix-caching", "no-enable-prefix-caching", "prefix-caching-hash-algo", "prefix-match-unit",
    "prefix-cache-retention-interval", "enable-mamba-shared-prefix-checkpoint",
    "no-enable-mamba-shared-prefix-checkpoint",
})  # fmt: skip
_KNOWN = (
    "stock,ours, hosts=1,2, url=URL,RECIPE, mode, method, spec=on,off, n, profile, variant, vllm, engine, "
    "patch.NAME=on,off, start.NAME=on,off, env.NAME, speculation.KEY, or a flag of vllm serve; values with commas are "
    "quoted, or are JSON"
)


STOCK_VARIATION = "stock,ours"
STOCK_KEY = "setup"
STOCK, OURS = STOCK_VARIATION.split(",")
# Settings about what is served, where, and with how much memory; stock and ours share them.
_SHARED = frozenset({
    "host", "synthetic", "load-format", "max-model-len", "gpu-memory-utilization", "quantization", "dtype", "seed",
    "hf-overrides", "hf-config-path", "config-format", "tokenizer", "tokenizer-mode", "tokenizer-revision",
    "skip-tokenizer-init", "trust-remote-code", "chat-template", "chat-template-content-format", "reasoning-parser",
    "default-chat-template-kwargs", "generation-config", "override-generation-config", "limit-mm-per-prompt",
    "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "distributed-executor-backend",
    "download-dir",
})  # fmt: skip
_DRAFTER = "drafter."
_SHARED_PARTS = ("target.", _DRAFTER, "restart.", "speculation.rejection_sample_method", "speculation.synthetic_")
_OUR_FIELDS = ("mode", "method", "num_speculative_tokens", "set_up")
_Planner = Callable[[LaunchRequest], PlannedLaunch]


class Varied(NamedTuple):
    """A parsed `--vary`."""

    key: str
    arms: dict[str, LaunchChanges]
    """The changes of the launch request, by name of the arm."""


# As `spec=off,on`, with the drafted tokens of the launch.
SPECULATION = Varied(
    "spec", {"off": LaunchChanges(num_speculative_tokens=0, removed_settings=("n",)), "on": LaunchChanges()}
)


class VariationError(UsageError):
    """The variation is invalid; `example` is a valid one."""

    def __init__(self, what: str, *, evidence: str = "", hint: str = "", example: str = "") -> None:
        self.without_option = UsageError(what, evidence=evidence, hint=hint or example)
        """The same error for users who type the variation without the command-line option."""
        super().__init__(f"--vary {what}", evidence=evidence, hint=hint or (f"--vary {example}" if example else ""))


def parse_variation(words: str, *, least: int = 2, repeated: bool = False) -> Varied:
    """Return the arms of `KEY=V1,V2,…`, at least `least`; a repeated value makes two equal arms.

    Values are parsed as entries of a YAML list. The prefix cache can only be varied if prompts are `repeated`
    unchanged.
    """
    key, equals, values_text = words.partition("=")
    key = key.strip().removeprefix("--")
    if not equals or not key:
        raise VariationError(f"{words}: expected KEY=VALUE,VALUE", hint=f"what can be varied: {_KNOWN}")
    if key in _FIXED:
        raise VariationError(f"{key} is the same for all arms", hint=f"what can be varied: {_KNOWN}")
    if key == URL:
        raise VariationError(f"{key}: a server that already runs is an arm of an A/B only")
    if key.replace("_", "-") in _PREFIX_CACHE and not repeated:
        what = f"{key} has no effect here: each prompt is made unique so that no cache answers"
        do = "--dataset repeat sends the same prompts again and again"
        raise VariationError(what, hint=do)
    values = _split_values(key, values_text)
    if place := find_secret(key, values):
        what = f"{place}: these are secrets, and arms are named by their values"
        raise VariationError(what, hint=f"{advise_on_secret(place)}, the same for all arms")
    if len(values) < least:
        raise VariationError(f"{words}: expected at least two values", example=f"{key}=VALUE,VALUE")
    arms: dict[str, LaunchChanges] = {}
    for value in values:
        repeats = sum(name == value or name.startswith(f"{value} (") for name in arms)
        arms[f"{value} ({repeats + 1})" if repeats else value] = _build_changes(key, value)
    return Varied(key, arms)


def is_of_hosts(words: str) -> bool:
    """Whether a `--vary` is about the number of hosts."""
    return words.partition("=")[0].strip() == HOSTS


def is_of_servers(words: str) -> bool:
    """Whether a `--vary` is about servers that already run."""
    return words.partition("=")[0].strip().removeprefix("--") == URL


def split_servers(words: str, recipe: str) -> tuple[list[str], str]:
    """Return the arms of `url=URL,RECIPE` or `url=URL,URL`, and the recipe among them, or an empty string.

    After a single URL comes `recipe`, unless that is empty.
    """
    names = [word.strip() for word in words.partition("=")[2].split(",")]
    names += [recipe] if len(names) == 1 and recipe else []
    ours = [name for name in names if not is_address(name)]
    if len({*names}) < max(2, len(names)) or len(ours) > 1 or "" in names:
        raise VariationError(f"{words}: expected a URL and a recipe, or URLs", example="url=http://host:8000,RECIPE")
    return names, ours[0] if ours else ""


def build_host_variation(words: str, request: LaunchRequest, width: int) -> Varied:
    """Return the arms of `hosts=1,N`: this host alone, and all named hosts; `width` is divided among them."""
    hosts = 1 + len(request.peers)
    if hosts == 1:
        raise VariationError("hosts needs other hosts", hint="--peer HOST names one")
    numbers = [word.strip() for word in words.partition("=")[2].split(",")]
    if sorted(numbers) != ["1", str(hosts)]:
        raise VariationError(f"{words}: {hosts} hosts are given, this one included", example=f"hosts=1,{hosts}")
    share = width // hosts if width % hosts == 0 else width

    def build_changes(number: int) -> LaunchChanges:
        settings = {"hosts": str(number), "tensor-parallel-size": str(share * number)}
        return LaunchChanges(settings=settings, removed=ALONE if number == 1 else ())

    return Varied(HOSTS, {word: build_changes(int(word)) for word in numbers})


def order_boots(arms: int, boots: int) -> tuple[int, ...]:
    """Return the arm of each boot, in alternating direction, so that a drift affects all arms alike."""
    passes = [range(arms) if turn % 2 == 0 else reversed(range(arms)) for turn in range(boots)]
    return tuple(arm for arms_of_pass in passes for arm in arms_of_pass)


def _split_values(key: str, text: str) -> list[str]:
    line = f"[{text}]"
    try:
        node = yaml_loader.compose_yaml(line)
    except YamlError as error:
        raise VariationError(
            f"{key}: expected values separated by commas", evidence=str(error), hint="quote text values"
        ) from None
    if not isinstance(node, yaml.SequenceNode) or node.end_mark.index != len(line):
        raise VariationError(f"{key}: brackets do not match", hint="quote text values")
    values = [
        node_value.value
        if isinstance(node_value, yaml.ScalarNode)
        else line[node_value.start_mark.index : node_value.end_mark.index]
        for node_value in node.value
    ]
    if any(not value.strip() or not value.isprintable() for value in values):
        raise VariationError(f"{key}: a value is empty or not plain text", example=f"{key}=VALUE,VALUE")
    return values


def _build_changes(key: str, value: str) -> LaunchChanges:
    part, _, name = key.partition(".")
    if key in _FIELDS:
        return _change_field(key, value)
    if key == "spec" and _switch(key, value):
        return LaunchChanges(removed=("num_speculative_tokens",), removed_settings=("n",))
    if key == "spec" or key.replace("-", "_") in {"n", "num_speculative_tokens"}:
        if key != "spec" and not (value.isascii() and value.isdigit() and len(value) <= 2 and int(value) <= 64):
            raise VariationError(f"n: expected whole numbers from 0 to 64, not '{value}'")
        tokens = 0 if key == "spec" else int(value)
        return LaunchChanges(num_speculative_tokens=tokens, removed_settings=("n",))
    if part in {"patch", "patches", "start"} and name:
        setting = key if part == "start" else f"patches.{name}"
        return LaunchChanges(settings={setting: "true" if _switch(key, value) else "false"})
    return LaunchChanges(settings={key: make_absolute(key, value)})


def _change_field(name: str, value: str) -> LaunchChanges:
    if name in _NAMES and value not in _NAMES[name]:
        *others, last = _NAMES[name]
        raise VariationError(f"{name}: expected {', '.join(others)} or {last}, not '{value}'")
    if value.startswith("-"):
        raise VariationError(f"{name}: '{value}' is not a name")
    if name == "variant" and value == "none":
        return LaunchChanges(removed=("variant",))
    return msgspec.convert({name: value}, LaunchChanges)


def _switch(key: str, value: str) -> bool:
    if value not in {"on", "off"}:
        raise VariationError(f"{key}: expected on or off, not '{value}'", example=f"{key}=on,off")
    return value == "on"


def build_stock_variation(request: LaunchRequest, plan: _Planner) -> Varied:
    """Return the arms stock and ours; ours defaults to what the plan offers."""
    without = LaunchChanges(
        set_up=SetUp.PUBLISHED, removed=(*_OUR_FIELDS, "streams"), removed_settings=_list_our_settings(request)
    )
    published = plan(request.with_changes(without))
    return Varied(
        STOCK_KEY,
        {STOCK: _take_out_measures(without, published), OURS: _offer_changes(request, plan(request), published)},
    )


def _take_out_measures(without: LaunchChanges, published: PlannedLaunch) -> LaunchChanges:
    """Return the changes that make a request the bare published command: the only definition of stock."""
    unneeded = [name for name in published.plan.patches if not _needs_patch(published, name)]
    return replace(
        without,
        settings=startup_optimizations.ALL_OPTIMIZATIONS_OFF | {f"patches.{name}": "false" for name in unneeded},
    )


def _list_our_settings(request: LaunchRequest) -> tuple[str, ...]:
    own = request.method is not None  # its drafter does not fit another method
    return tuple(name for name in request.settings if not is_shared(name) or (own and name.startswith(_DRAFTER)))


def is_shared(setting: str) -> bool:
    """Whether a setting is about what is served or where, so that stock and ours share it."""
    return setting.startswith(_SHARED_PARTS) or setting.partition(".")[0].replace("_", "-") in _SHARED


def _needs_patch(published: PlannedLaunch, name: str) -> bool:
    """Whether the server does not start, or serves the pair wrongly, without this patch."""
    oldest = published.resolved.oldest_vllm
    too_old = oldest is not None and Version(published.plan.vllm) < Version(oldest)
    return too_old or bool(patch_file.load_patch(name).hardware)


def _offer_changes(request: LaunchRequest, planned: PlannedLaunch, published: PlannedLaunch) -> LaunchChanges:
    """Return what the plan offers, or no changes if the request already differs from stock."""
    ours, bare = planned.plan, published.plan
    named = any(getattr(ours, name) != getattr(bare, name) for name in _OUR_FIELDS)
    if named or _list_our_settings(request):
        return LaunchChanges()
    if planned.fast:
        return LaunchChanges(set_up=SetUp.FAST)
    offered = cuda_graphs.is_choice(planned.resolved, ours.mode, ours.num_speculative_tokens)
    return LaunchChanges(mode=Mode.GRAPHS) if offered else LaunchChanges()
