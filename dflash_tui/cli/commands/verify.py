"""`verify RECIPE|RUN|URL`: check the functions of a served pair, or only its answers."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import time

from dflash_tui.benchmark.chat import check_server, skip_check
from dflash_tui.benchmark.server import Server
from dflash_tui.cli.commands.experiments import ab_run
from dflash_tui.cli.commands.up import up
from dflash_tui.cli.console import print_items, print_status, print_table, use_json
from dflash_tui.cli.requests import choose_server
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.launch import shutdown
from dflash_tui.monitoring.foreign_server import is_address
from dflash_tui.presentation import benchmark_text
from dflash_tui.runs import registry, verification
from dflash_tui.runs.run import Run
from dflash_tui.runs.verification import CheckResult, FunctionalCheck, Verification

_MARKS = {CheckResult.PASSED: "✓", CheckResult.FAILED: "✗", CheckResult.SKIPPED: "–"}
_OUTPUT = "output"


def verify(args: argparse.Namespace) -> int:
    """Check a running server, or launch one and stop it afterwards; record the result."""
    if is_address(args.recipe):
        return _verify_address(args)
    if args.key_env or args.model:
        raise UsageError("--key-env and --model are for a URL", hint="name one such as http://host:8000")
    if args.lossless:
        return ab_run(args)
    if args.detach:
        raise UsageError("--detach is for verify --lossless")
    as_json, args.json = args.json, False
    use_json(False)
    run = _find_running(args.recipe)
    launched = run is None
    with contextlib.redirect_stdout(sys.stderr):  # stdout of a launch and an experiment is not data here
        run = run or _launch(args)
        try:
            checks = asyncio.run(_check(Server.from_run(run)))
        finally:
            if launched:
                asyncio.run(shutdown.stop_and_release_memory(run, print_status))
        checks.append(_check_output(args, run, launched=launched, works=bool(checks[1:])))
    plan = run.plan
    verification_record = Verification(plan.recipe, time.time(), plan.vllm, plan.hardware.value, run.id, tuple(checks))
    verification.record_verification(verification_record)
    use_json(as_json)
    _show(verification_record, f"dflash-tui logs {run.id}")
    print_status(f"{plan.recipe}: {verification.format_badge(verification_record)}")
    return 0


def _verify_address(args: argparse.Namespace) -> int:
    """Check the server at an address; nothing is recorded, and outputs are not compared."""
    if args.lossless:
        hint = "verify --lossless RECIPE launches it with and without speculation"
        raise UsageError("verify --lossless launches the server that it checks, and takes no URL", hint=hint)
    args.run = args.recipe
    server = choose_server(args)
    print_status(benchmark_text.format_server(server))
    checks = tuple(asyncio.run(_check(server)))
    record = Verification(server.url, time.time(), server.facts.version, "", "", checks)
    _show(record, "the log of the server may say why")
    return 0


def _show(record: Verification, hint: str) -> None:
    """Print the checks; raise DflashError if one failed."""
    print_items([record])
    rows = [(f"{_MARKS[check.result]} {check.name}", check.result.value, check.detail) for check in record.checks]
    print_table(("CHECK", "RESULT", ""), rows)
    if record.failed:
        raise DflashError(f"{record.recipe} failed: {', '.join(record.failed)}", hint=hint)


def _find_running(name: str) -> Run | None:
    """Return the newest running server whose recipe or run id (or its start) is `name`."""
    running = [
        run for run in registry.list_living_runs() if run.plan.recipe == name or (name and run.id.startswith(name))
    ]
    if newest := registry.choose_newest(running):
        return registry.find_listening_run(newest.id)
    if any(run.id == name for run in registry.list_runs()):
        raise UsageError(f"{name} has ended", hint="dflash-tui verify RECIPE launches one")
    return None


def _launch(args: argparse.Namespace) -> Run:
    before = {run.id for run in registry.list_runs()}
    up(args)
    return next(run for run in reversed(registry.list_living_runs()) if run.id not in before)


async def _check(server: Server) -> list[FunctionalCheck]:
    checks = []
    async for check in check_server(server):
        print_status(f"{_MARKS[check.result]} {check.name}: {check.detail}")
        checks.append(check)
    return checks


def _check_output(args: argparse.Namespace, run: Run, *, launched: bool, works: bool) -> FunctionalCheck:
    """Compare the answers with those without speculation; skip that if the server was running before."""
    why = "" if launched else f"{run.id} is running; stop it first: verify launches a server of its own"
    why = "nothing is drafted" if not run.plan.num_speculative_tokens else why
    why = "left out" if args.without_output else why if works else "it does not answer"
    if why:
        return skip_check(_OUTPUT, why)
    args.yes = True
    try:
        ab_run(args)
    except UsageError as error:  # it did not begin, such as beside another server: not a failure of the pair
        return skip_check(_OUTPUT, error.what)
    except DflashError as error:
        return FunctionalCheck(_OUTPUT, CheckResult.FAILED, " ".join(filter(None, (error.what, error.evidence))))
    return FunctionalCheck(
        _OUTPUT, CheckResult.PASSED, "greedy answers equal those without speculation, except for rounding"
    )
