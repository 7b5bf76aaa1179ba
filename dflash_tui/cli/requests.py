"""The options of a plan, parsed, as the value that everything below the command line takes: a launch request."""

from __future__ import annotations

import argparse
from pathlib import Path

from dflash_tui.common.errors import UsageError
from dflash_tui.planning import recipe_loader
from dflash_tui.planning.recipe import Mode
from dflash_tui.planning.request import LaunchRequest


def read_launch_request(args: argparse.Namespace) -> LaunchRequest:
    """Return what the options of a plan ask for; a recipe's file by its absolute path, to be found from anywhere.

    Raises:
        UsageError: there is no such recipe, or a setting is not of the form KEY=VALUE.
    """
    is_file = recipe_loader.recipe_path(args.recipe) == Path(args.recipe)
    return LaunchRequest(
        recipe=str(Path(args.recipe).absolute()) if is_file else args.recipe,
        profile=args.profile or None,
        variant=args.variant or None,
        mode=Mode(args.mode) if args.mode else None,
        port=args.port,
        num_speculative_tokens=args.num_speculative_tokens,
        gpu=args.gpu or None,
        vllm=args.vllm or None,
        engine=args.engine or None,
        settings=_split_settings(args.settings or []),
    )


def _split_settings(words: list[str]) -> dict[str, str]:
    """Return the settings of `--set KEY=VALUE` by their names; of one that is made twice the last holds."""
    settings: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        key = key.strip().removeprefix("--")
        if not equals or not key:
            raise UsageError(f"--set {word}: expected KEY=VALUE", hint="for instance --set max-model-len=8192")
        settings[key] = value
    return settings
