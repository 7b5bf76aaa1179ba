"""Build launch requests from options, and ask for trust in a recipe before it runs."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from dflash_tui.benchmark import suites
from dflash_tui.benchmark.server import Server
from dflash_tui.cli.console import ask_yes, can_ask, print_status
from dflash_tui.cli.event_lines import PreparingLines
from dflash_tui.common.errors import UsageError
from dflash_tui.engines import download, model_config
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.model_config import TreeDrafter
from dflash_tui.engines.model_hub import HubAccessError
from dflash_tui.launch import recipe_files, recipe_trust
from dflash_tui.machine.hardware import parse_class
from dflash_tui.monitoring.foreign_server import is_address
from dflash_tui.monitoring.server_identity import find_server
from dflash_tui.peers.transport import check_hosts
from dflash_tui.planning.derivation import catalogue
from dflash_tui.planning.derivation.pair import DerivedPair
from dflash_tui.planning.methods import FACTS, DrafterUse, Method
from dflash_tui.planning.patch_file import Patch
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode, Recipe, SetUp
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.planning.serve_flags import make_absolute
from dflash_tui.presentation import recipe_text
from dflash_tui.runs import registry
from dflash_tui.runs.run import KEY_VARIABLE

# Seconds after which a message says that a server has not answered yet.
_SLOW = 10.0
_OVER_HOSTS = frozenset({"up", "plan", "doctor", "ab", "tune"})


def read_launch_request(args: argparse.Namespace) -> LaunchRequest:
    """Return the launch request of the plan options; a recipe file is named by its absolute path."""
    method = Method(args.method) if args.method else None
    recipe = _find_recipe(args, method)
    return LaunchRequest(
        recipe=recipe,
        profile=args.profile or None,
        variant=args.variant or None,
        mode=Mode(args.mode) if args.mode else None,
        method=method if args.recipe else None,  # a derived recipe has the requested method already
        port=args.port,
        num_speculative_tokens=args.num_speculative_tokens,
        set_up=SetUp(args.set_up) if args.set_up else None,
        streams=args.streams,
        gpu=_name_gpu(args.gpu),
        vllm=args.vllm or None,
        engine=args.engine or None,
        settings=_split_settings(args.settings or []),
        peers=_read_peers(args),
        link=args.link or None,
    )


def _name_gpu(name: str | None) -> str | None:
    return parse_class(name) or name if name else None


def _read_peers(args: argparse.Namespace) -> tuple[str, ...]:
    if args.peers and args.command not in _OVER_HOSTS and not getattr(args, "lossless", False):
        hint = f"{', '.join(sorted(_OVER_HOSTS))} and verify --lossless do"
        raise UsageError(f"{args.command} takes no --peer", hint=hint)
    if args.peers:
        check_hosts(args.peers)
    elif args.link:
        raise UsageError("--link needs --peer", hint="--peer HOST names the host at its other end")
    return tuple(args.peers)


def _find_recipe(args: argparse.Namespace, method: Method | None) -> str:
    """Return the recipe's name or the absolute path of its file; derive one for `--target`."""
    target, drafter = getattr(args, "target", None), getattr(args, "drafter", None)
    if args.recipe and target:
        raise UsageError(
            "a recipe cannot be combined with --target", hint="--set target.model=NAME changes the target of a recipe"
        )
    if args.recipe and drafter:
        raise UsageError("--drafter needs --target", hint="--set drafter.model=NAME changes the drafter of a recipe")
    if target:
        pair = derive_recipe(target, drafter, method, args.num_speculative_tokens)
        return str(recipe_files.write_derived_recipe(pair, on_cpu=_name_gpu(args.gpu) == "cpu"))
    if not args.recipe:
        raise UsageError(
            "missing argument: RECIPE", hint="dflash-tui recipes lists them; --target MODEL serves one without"
        )
    is_file = recipe_loader.recipe_path(args.recipe) == Path(args.recipe)
    return str(Path(args.recipe).absolute()) if is_file else str(args.recipe)


def _split_settings(words: list[str]) -> dict[str, str]:
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip().removeprefix("--")
        if not equals or not key:
            raise UsageError(f"--set {word}: expected KEY=VALUE", hint="for instance --set max-model-len=8192")
        settings[key] = make_absolute(key, value)
    return settings


def derive_recipe(target: str, drafter: str | None, method: Method | None, tokens: int | None = None) -> DerivedPair:
    """Derive how vLLM serves a pair, and print each fact with its rule; for a target alone list its drafters.

    `tokens` is the requested number of drafted tokens per step, used if no rule knows it.
    """
    drafters = [] if drafter else _list_drafters(target, method)
    try:
        derived = asyncio.run(recipe_files.derive_from_models(target, drafter, method, tokens))
    except UsageError as error:
        if not drafters:
            raise
        raise UsageError(
            error.what, evidence=error.evidence, hint=f"for instance --drafter {shlex.quote(drafters[0])}"
        ) from None
    for fact in derived.facts:
        print_status(f"{fact.name:8} {fact.value}: {fact.rule}")
    return derived


def _list_drafters(target: str, method: Method | None) -> list[str]:
    """Print how tokens can be drafted for a model, by the catalogue and the hub; return the drafters."""
    takes_drafter = method is None or FACTS[method].drafter is not DrafterUse.NEVER
    pairs = catalogue.find_pairs(catalogue.load_catalogue(), target) if takes_drafter else []
    pairs = [pair for pair in pairs if (pair.method is method if method else pair.method is not Method.NONE)]
    drafters = [pair.drafter for pair in pairs]
    tree = _read_tree(target) if takes_drafter else []
    for pair in pairs:
        print_status(f"{'known':8} {recipe_text.format_drafter(pair)}")
    for drafter in tree:
        if drafter.repo not in drafters and method in {None, drafter.method}:
            print_status(f"{'hub':8} {recipe_text.format_tree_drafter(drafter)}")
            drafters.append(drafter.repo)
    return [drafter for drafter in drafters if drafter]


def _read_tree(target: str) -> Sequence[TreeDrafter]:
    """Return the drafters of the hub's model tree; print a note if it cannot be read."""
    try:
        return asyncio.run(model_config.find_tree_drafters(target))
    except HubAccessError as error:
        print_status(f"{'hub':8} its model tree was not read: {error}")
        return ()


def confirm_trust(recipe: Recipe, plans: Sequence[Plan], args: argparse.Namespace) -> None:
    """Ensure that the plans may be launched; ask for trust in parts that are not shipped."""
    _ask_trust(recipe.name, recipe_trust.list_launched(recipe, plans), args)


def confirm_patch_trust(patches: Iterable[Patch], engine: Engine, args: argparse.Namespace) -> None:
    """Ensure that the patches may be applied to `engine`; ask for trust in those that are not shipped."""
    _ask_trust(f"vLLM in {engine.folder}", patches, args)


def _ask_trust(name: str, contents: Iterable[Recipe | Patch], args: argparse.Namespace) -> None:
    untrusted = recipe_trust.find_untrusted(contents)
    if not untrusted.contents:
        return
    if not args.trust:
        if args.json or not can_ask():
            raise untrusted.build_error()
        print_status(f"{name} has parts that are not shipped with dflash-tui. They can run code as you:")
        print_status("\n".join(f"  {ingredient}" for ingredient in untrusted.ingredients))
        if not ask_yes("Run it? You are asked again only when it changes."):
            raise UsageError(f"{name} is not trusted; nothing was started")
    recipe_trust.trust_contents(*untrusted.contents)


def choose_server(args: argparse.Namespace) -> Server:
    """Return the server of the named run, or at an address; raise DflashError if it does not answer."""
    if is_address(args.run):
        with report_slowness(args.run):
            return asyncio.run(find_server(args.run, args.model, args.key_env))
    if args.key_env or args.model:
        raise UsageError("--key-env and --model are for a URL", hint=f"a run's own key is in {KEY_VARIABLE}")
    return Server.from_run(registry.find_listening_run(args.run))


@contextmanager
def report_slowness(address: str) -> Iterator[None]:
    """Print a note if a server takes long to answer in the block."""
    text = f"{address} has not answered within {_SLOW:.0f} s; still waiting, Ctrl-C cancels"
    timer = threading.Timer(_SLOW, print_status, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def ensure_dataset(words: str | None) -> None:
    """Fetch the data set of the suite `words` if this machine lacks it."""
    if words and (name := suites.name_missing_dataset(words)) is not None:
        asyncio.run(download.fetch_dataset(name, PreparingLines()))
