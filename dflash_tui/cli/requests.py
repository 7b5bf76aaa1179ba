"""The options of a plan, parsed, as the value that everything below the command line takes: a launch request."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash_tui.common.errors import UsageError
from dflash_tui.machine.hardware import parse_class
from dflash_tui.peers.transport import check_hosts
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe_loader
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.request import LaunchRequest
from dflash_tui.planning.serve_flags import make_absolute

_OVER_HOSTS = frozenset({"up", "plan", "doctor", "ab", "tune", "verify-output"})


def read_launch_request(args: argparse.Namespace) -> LaunchRequest:
    """Return what the options of a plan ask for; a recipe's file by its absolute path, to be found from anywhere.

    Raises:
        UsageError: there is no such recipe, or a setting is not of the form KEY=VALUE.
    """
    method = Method(args.method) if args.method else None
    recipe = _find_recipe(args, method)
    return LaunchRequest(
        recipe=recipe,
        profile=args.profile or None,
        variant=args.variant or None,
        mode=Mode(args.mode) if args.mode else None,
        method=method if args.recipe else None,  # a derived recipe is of the method that was asked for
        port=args.port,
        num_speculative_tokens=args.num_speculative_tokens,
        gpu=_name_gpu(args.gpu),
        vllm=args.vllm or None,
        engine=args.engine or None,
        settings=_split_settings(args.settings or []),
        peers=_read_peers(args),
        link=args.link or None,
    )


def _name_gpu(name: str | None) -> str | None:
    """Return the GPU as it was named, a class by our name for it."""
    return parse_class(name) or name if name else None


def _read_peers(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the other hosts of a server over several, each a name that ssh takes for one.

    Raises:
        UsageError: one is no such name, two are the same, or a link is named without a host at its other end.
    """
    if args.peers and args.command not in _OVER_HOSTS:
        raise UsageError(f"{args.command} takes no --peer", hint=f"{', '.join(sorted(_OVER_HOSTS))} do")
    if args.peers:
        check_hosts(args.peers)
    elif args.link:
        raise UsageError("--link needs --peer", hint="--peer HOST names the host at its other end")
    return tuple(args.peers)


def _find_recipe(args: argparse.Namespace, method: Method | None) -> str:
    """Return the recipe's name, or the absolute path of its file; for two models that of one that is derived."""
    target, drafter = getattr(args, "target", None), getattr(args, "drafter", None)
    if args.recipe and target:
        raise UsageError(
            "a recipe cannot be combined with --target", hint="--set target.model=NAME changes the target of a recipe"
        )
    if args.recipe and drafter:
        raise UsageError("--drafter needs --target", hint="--set drafter.model=NAME changes the drafter of a recipe")
    if target:
        from dflash_tui.cli import derived_recipe

        on_cpu, tokens = _name_gpu(args.gpu) == "cpu", args.num_speculative_tokens
        return str(derived_recipe.derive_recipe_file(target, drafter, method, tokens, on_cpu=on_cpu))
    if not args.recipe:
        raise UsageError("which recipe?", hint="dflash-tui recipes lists them; --target MODEL serves one without")
    is_file = recipe_loader.recipe_path(args.recipe) == Path(args.recipe)
    return str(Path(args.recipe).absolute()) if is_file else str(args.recipe)


def _split_settings(words: list[str]) -> dict[str, str]:
    """Return the settings of `--set KEY=VALUE` by their names; of one that is made twice the last holds."""
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip().removeprefix("--")
        if not equals or not key:
            raise UsageError(f"--set {word}: expected KEY=VALUE", hint="for instance --set max-model-len=8192")
        settings[key] = make_absolute(key, value)
    return settings
