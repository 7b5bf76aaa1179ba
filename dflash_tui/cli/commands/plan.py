"""This machine and what a launch would do on it: `gpus`, `plan`, `doctor` and `service`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from contextlib import suppress

import msgspec

from dflash_tui.cli.commands.hosts import plan_over_peers
from dflash_tui.cli.console import (
    print_data,
    print_json,
    print_result,
    print_status,
    print_table,
    print_text,
    terminal_width,
)
from dflash_tui.cli.json_lines import CheckLine, UnitText
from dflash_tui.cli.requests import confirm_trust, read_launch_request
from dflash_tui.common import paths
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import (
    GIB,
    UNKNOWN,
    format_gib,
    format_number,
    format_percent,
    format_usage,
    name_commands,
)
from dflash_tui.launch import shutdown
from dflash_tui.launch.planner import PlannedLaunch, plan_launch_here
from dflash_tui.launch.preflight import runner
from dflash_tui.launch.preflight.check import list_local_files
from dflash_tui.launch.preflight.pair import check_files, check_pair
from dflash_tui.launch.preflight.runner import PreflightReport
from dflash_tui.machine import nvml, system
from dflash_tui.machine.gpus import Gpu
from dflash_tui.machine.process_environment import build_own_path
from dflash_tui.peers import cluster_launch
from dflash_tui.planning import serve_flags
from dflash_tui.planning.plan import Plan, format_command
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.presentation.plan_text import describe_plan, format_check, format_verdict, summarize_plan
from dflash_tui.runs import lifecycle

# They locate programs, engines, models and runs; systemd does not inherit the shell's variables. None is secret.
_PASSED_VARIABLES = (
    "PATH", "PYTHONPATH", "CUDA_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME",
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
)  # fmt: skip
# Seconds that a stop may need beyond its grace period and the wait for memory: SIGKILL, and the kernel.
_STOP_MARGIN = 30
_UNIT = """\
# Made by `dflash-tui service`.
[Unit]
Description=vLLM with DFlash: {recipe} (dflash-tui)

[Service]
Type=exec
ExecStart=:{command}
{environment}# Tokens and keys (HF_TOKEN, VLLM_API_KEY) belong in this file, not here: NAME=value, chmod 600.
EnvironmentFile=-{secrets}
# `--set restart.times=N` launches a crashed server again. systemd must not: it would also do so after a wrong flag.
Restart=no
# SIGTERM goes to dflash-tui, which stops the server; what is left after that is killed.
KillMode=mixed
TimeoutStopSec={patience}
SuccessExitStatus=143
# The OOM killer kills this server before sshd and your shell. MemoryMax leaves {reserve} MiB of the machine to them; it
# does not count what CUDA allocates on unified memory, which gpu-memory-utilization bounds.
OOMScoreAdjust=1000
OOMPolicy=continue
MemoryMax={most}
MemorySwapMax=0

[Install]
WantedBy=default.target
"""
_HEADER = ("GPU", "NAME", "CLASS", "MEMORY", "BUSY", "HEAT", "POWER", "CLOCK", "THROTTLE")


def plan(args: argparse.Namespace) -> int:
    """`plan RECIPE`: print what a launch would do."""
    planned = plan_over_peers(read_launch_request(args), args, with_commands=True)
    expected = [msgspec.to_builtins(band) for band in planned.plan.expected]
    figures = {"expected": expected, "fit": msgspec.to_builtins(planned.memory)}
    width, command = terminal_width(), format_command(planned.plan, brief=True).replace("\n", "\n  ")
    summary = f"{summarize_plan(planned, width)}\ncommand\n  {command}"
    text = describe_plan(planned, width) if args.verbose else summary
    print_result(msgspec.to_builtins(planned.plan) | figures, text)
    if not args.json and not args.verbose:
        print_status("--verbose shows its patches, startup optimizations, published figures and deviations from them")
    checks = (*check_pair(planned.resolved, planned.plan), *check_files(planned.resolved))
    for check in checks:
        print_status(format_check(check, terminal_width()))
    if not planned.plan.relaunch_request.engine:  # a chosen engine's own parser checks its flags instead
        for mistake in serve_flags.find_mistakes(planned.plan.vllm, planned.plan.argv[3:]):
            print_status(f"! it would not start: {mistake}")
    _name_taken_port(planned.plan)
    return 0


def _name_taken_port(plan: Plan) -> None:
    with suppress(UsageError):  # if no port is free, the launch reports that
        if (free := lifecycle.find_free_port(plan.port)) != plan.port:
            by_hand = plan.request and plan.request.port
            instead = f"{free} is free: --port {free}" if by_hand else f"a launch will use {free}"
            print_status(f"! port {lifecycle.describe_passed_ports(plan.port, free)}; {instead}")


async def _check_all_hosts(planned: PlannedLaunch) -> PreflightReport:
    hosts = await cluster_launch.reach_hosts(planned.plan.relaunch_request)
    return (await hosts.check(planned, thorough=True))[0]


def doctor(args: argparse.Namespace) -> int:
    """`doctor [RECIPE]`: print every check; the exit code is 4 if one fails."""
    if args.recipe is None:
        args.recipe = "demo-cpu"
        planned = plan_launch_here(read_launch_request(args))
        report = asyncio.run(runner.run_machine_checks(planned))
    else:
        planned = plan_over_peers(read_launch_request(args), args)
        if args.release_page_cache:
            models = asyncio.run(runner.survey_launch(planned)).models
            freed = system.release_page_cache(list_local_files(models))
            print_status(f"{format_gib(freed)} of page cache released")
        report = asyncio.run(_check_all_hosts(planned))
    for check in report.checks:
        print_result(CheckLine.from_check(check), name_commands(format_check(check, terminal_width())))
    print_text(format_verdict(report))
    return 4 if report.failed else 0


def service(args: argparse.Namespace) -> int:
    """`service RECIPE`: print the unit file on stdout, and where it belongs on stderr."""
    planned = plan_launch_here(read_launch_request(args))
    confirm_trust(planned.resolved.recipe, [planned.plan], args)
    name, text = f"dflash-tui-{planned.plan.recipe}.service", _format_unit(args, planned.plan)
    print_result(UnitText(name, text), text.rstrip("\n"))
    print_status(f"write it to ~/.config/systemd/user/{name}, then systemctl --user daemon-reload")
    return 0


def _format_unit(args: argparse.Namespace, plan: Plan) -> str:
    total = system.read_system_memory().total
    reserve = max(total // 20, min(4 << 30, total // 4))
    # Keep the port, which clients know.
    changes = LaunchChanges(port=plan.port, engine=plan.unpatched_folder if args.engine else None)
    force = ["--force", args.force] if args.force else []
    launch = ["up", *plan.relaunch_request.with_changes(changes).to_argv(), *force]
    words = [sys.executable, "-P", "-m", "dflash_tui", *launch, "--every", str(args.every), "--foreground"]
    variables = {name: os.environ[name] for name in _PASSED_VARIABLES if os.environ.get(name)}
    if not paths.PACKAGE_ROOT.is_relative_to(sys.prefix):  # a checkout may be importable only from this shell
        variables["PYTHONPATH"] = build_own_path()
    return _UNIT.format(
        recipe=plan.recipe,
        command=" ".join(map(_quote, words)),
        environment="".join(f"Environment={_quote(f'{key}={value}')}\n" for key, value in variables.items()),
        secrets=str(paths.user_recipes_folder().parent / "service.env").replace("%", "%%"),
        patience=int(lifecycle.STOP_GRACE + shutdown.RELEASE_TIMEOUT) + _STOP_MARGIN,
        reserve=reserve >> 20,
        most=total - reserve,
    )


def _quote(word: str) -> str:
    """Quote a word as systemd.syntax(7) requires."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return word if word.replace("-", "").replace("/", "").replace(".", "").isalnum() else f'"{escaped}"'


def gpus(args: argparse.Namespace) -> int:
    """Print the GPUs, or why there are none."""
    probe = nvml.probe_gpus()
    if args.json:
        print_json(probe)
        return 0
    if not probe.gpus:
        print_data(probe.why_none)
        print_status("the recipe demo-cpu runs on the CPU")
        return 0
    print_data(f"driver {probe.driver or UNKNOWN}, CUDA {probe.cuda or UNKNOWN}")
    rows = [_gpu_row(card) for card in probe.gpus]
    print_table(_HEADER, rows, drop=("CLOCK", "NAME", "HEAT"))
    for card in probe.gpus:
        if card.trouble:
            print_data(f"! {card.index}: {card.trouble}")
    processes = [
        (str(card.index), str(process.pid), process.name or UNKNOWN, format_gib(process.memory))
        for card in probe.gpus
        for process in card.processes or ()
    ]
    if processes:
        print_data("")
        print_table(("GPU", "PID", "PROCESS", "MEMORY"), processes, right=(1, 3))
    return 0


def _gpu_row(card: Gpu) -> tuple[str, ...]:
    return (
        str(card.index),
        card.name or UNKNOWN,
        card.hardware.value,
        f"{format_usage(card.memory_used, card.memory_total, 'GiB', GIB)}{' unified' if card.unified else ''}",
        format_percent(card.utilisation),
        format_number(card.temperature_c, 0, "°C"),
        format_usage(card.power_w, card.power_limit_w, "W"),
        format_usage(card.sm_clock_mhz, card.sm_clock_max_mhz, "MHz"),
        UNKNOWN if card.throttle is None else ", ".join(card.throttle) or "no",
    )
