"""The command line: an argparse tree and exit codes; what the commands do is imported when they are called."""

from __future__ import annotations

import argparse
import io
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from dflash_tui import __version__
from dflash_tui.errors import EXIT_CODES, DflashError, UsageError

_DESCRIPTION = """\
Launch, watch and measure DFlash speculative decoding on vLLM.

Without a command: the panel, on a terminal. With --recipe NAME: the same engine without a screen (as `up NAME`).
Narration goes to stderr, data to stdout. A server outlives the program that launched it."""
_ON = {"1", "true", "yes", "on"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _make_streams_safe()
    parser = build_parser()
    args = parser.parse_args(argv)
    try:
        return _dispatch(parser, args)
    except DflashError as error:
        return _report(error, as_json=args.json)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read us is gone; nothing more can be said, not even by the interpreter's own flush at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:  # a full disk, a folder that is not ours
        what = f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}"
        return _report(DflashError(what, do="free or allow it, and run the same command again"), as_json=args.json)


def _make_streams_safe() -> None:
    """Never fail over a character that the terminal's encoding lacks, nor over a stream that the caller closed."""
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        elif isinstance(stream, io.TextIOWrapper) and name != "stdin":
            stream.reconfigure(errors="replace")


def _report(error: DflashError, *, as_json: bool) -> int:
    if as_json:
        import json

        fields = {"what": error.what, "evidence": error.evidence, "do": error.do, "exit_code": error.exit_code}
        print(json.dumps({"event": "error", **fields}), flush=True)  # noqa: T201
    print(f"dflash-tui: error: {error}", file=sys.stderr)  # noqa: T201
    return error.exit_code


def _dispatch(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    if args.command is not None:
        from dflash_tui import commands, headless

        handlers: dict[str, Callable[[argparse.Namespace], int]] = {
            "up": headless.up,
            "attach": headless.attach,
            "bench": headless.bench,
            "ps": commands.ps,
            "logs": commands.logs,
            "stop": commands.stop,
            "recipes": commands.recipes,
            "plan": commands.plan,
            "gpus": commands.gpus,
        }
        return handlers[args.command](args)
    if args.recipe is not None:
        from dflash_tui import headless

        return headless.up(args)
    if args.json or args.detach or args.bench:
        raise UsageError("--json, --detach and --bench need --recipe NAME or a command")
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        parser.print_help(sys.stderr)
        return 2
    from dflash_tui import commands

    return commands.panel()


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; each option's default comes from its variable, if set."""
    parser = argparse.ArgumentParser(
        prog="dflash-tui",
        description=_DESCRIPTION,
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"dflash-tui {__version__}")
    _option(parser, "--recipe", metavar="NAME", help="launch this recipe without a screen")
    _launch_options(parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    up = commands.add_parser("up", help="launch a recipe and watch it")
    up.add_argument("recipe", metavar="RECIPE", help="a recipe's name, or the path of a recipe file")
    _launch_options(up, inherit=True)

    attach = commands.add_parser("attach", help="watch a server that runs, in the panel or as lines")
    _run_argument(attach)
    _option(attach, "--plain", action="store_true", help="lines instead of the panel")
    _watch_options(attach, inherit=True)

    bench = commands.add_parser("bench", help="send the five prompt kinds to a server and measure each request")
    _run_argument(bench)
    _option(bench, "--rounds", type=_positive, default=1, metavar="N", help="how often to send them")
    _option(bench, "--scale", type=_scale, metavar="X", help="lengthen or shorten the answers (default: the recipe's)")
    _option(bench, "--temperature", type=_temperature, metavar="T", help="sampling temperature (default: the model's)")
    _json(bench, inherit=True)

    ps = commands.add_parser("ps", help="list the servers")
    _option(ps, "--all", action="store_true", help="the ended ones, too")
    _json(ps, inherit=True)

    logs = commands.add_parser("logs", help="print a server's log")
    _run_argument(logs)
    _option(logs, "-f", "--follow", action="store_true", help="go on until the server ends")

    stop = commands.add_parser("stop", help="end a server and all its processes")
    _run_argument(stop)

    recipes = commands.add_parser("recipes", help="list the recipes")
    _json(recipes, inherit=True)

    plan = commands.add_parser("plan", help="show what launching a recipe would do")
    plan.add_argument("recipe", metavar="RECIPE", help="a recipe's name, or the path of a recipe file")
    _plan_options(plan, inherit=True)
    _json(plan, inherit=True)

    gpus = commands.add_parser("gpus", help="show the GPUs")
    _json(gpus, inherit=True)
    return parser


def _launch_options(parser: argparse.ArgumentParser, *, inherit: bool = False) -> None:
    _plan_options(parser, inherit=inherit)
    detach = "return as soon as the server is launched (with --bench: measured)"
    _option(parser, "--detach", inherit=inherit, action="store_true", help=detach)
    bench = "send the five prompt kinds once the server answers"
    _option(parser, "--bench", inherit=inherit, action="store_true", help=bench)
    _watch_options(parser, inherit=inherit)


def _plan_options(parser: argparse.ArgumentParser, *, inherit: bool) -> None:
    _option(parser, "--mode", inherit=inherit, type=_mode, metavar="MODE", help="eager or compile")
    _option(parser, "--port", inherit=inherit, type=_port, metavar="PORT", help="port on 127.0.0.1")
    tokens = "tokens that the drafter proposes per step"
    _option(parser, "--num-speculative-tokens", inherit=inherit, type=_tokens, metavar="N", help=tokens)


def _watch_options(parser: argparse.ArgumentParser, *, inherit: bool) -> None:
    every = "seconds between two lines (default 5)"
    _option(parser, "--every", inherit=inherit, type=_positive, default=5, metavar="SECONDS", help=every)
    _json(parser, inherit=inherit)


def _json(parser: argparse.ArgumentParser, *, inherit: bool) -> None:
    _option(parser, "--json", inherit=inherit, action="store_true", help="one JSON object per line on stdout")


def _run_argument(parser: argparse.ArgumentParser) -> None:
    text = "a run, the start of its name, or a recipe (default: the newest server)"
    parser.add_argument("run", metavar="RUN", nargs="?", help=text)


def _option(parser: argparse.ArgumentParser, *names: str, inherit: bool = False, **settings: Any) -> None:
    """Add an option whose default is its DFLASH_TUI_ variable; with `inherit` it is the top level's value."""
    variable = "DFLASH_TUI_" + names[-1].lstrip("-").upper().replace("-", "_")
    value = os.environ.get(variable)
    settings["help"] = f"{settings['help']} [env: {variable}]"
    if inherit:
        settings["default"] = argparse.SUPPRESS
    elif value:
        settings["default"] = value.lower() in _ON if settings.get("action") == "store_true" else value
    parser.add_argument(*names, **settings)


def _number(text: str, least: float, most: float, *, whole: bool) -> float:
    try:
        number = int(text) if whole else float(text)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        kind = "a whole number" if whole else "a number"
        raise argparse.ArgumentTypeError(f"expected {kind} from {least:g} to {most:g}, not '{text}'")
    return number


def _positive(text: str) -> int:
    return int(_number(text, 1, 100_000, whole=True))


def _port(text: str) -> int:
    return int(_number(text, 1, 65_535, whole=True))


def _tokens(text: str) -> int:
    return int(_number(text, 1, 64, whole=True))


def _scale(text: str) -> float:
    return _number(text, 0.001, 100, whole=False)


def _temperature(text: str) -> float:
    return _number(text, 0, 2, whole=False)


def _mode(text: str) -> str:
    if text not in {"eager", "compile"}:
        raise argparse.ArgumentTypeError(f"expected eager or compile, not '{text}'")
    return text
