"""`service`: print a `systemd --user` unit that launches a recipe, watches it and stops it."""

from __future__ import annotations

import argparse
import os
import sys

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.cli.json_lines import UnitText
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.cli.trust import confirm_trust
from dflash_tui.common import paths
from dflash_tui.launch import shutdown
from dflash_tui.launch.planner import plan_launch_here
from dflash_tui.machine import system
from dflash_tui.machine.process_environment import build_own_path
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.runs import lifecycle

# Where programs, engines, models and runs are: systemd does not have the variables of the shell. None is secret.
_PASSED_VARIABLES = (
    "PATH", "PYTHONPATH", "CUDA_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME",
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
)  # fmt: skip
# Seconds that a stop may need beyond its grace and the wait for the memory: SIGKILL, and the kernel.
_STOP_MARGIN = 30
_UNIT = """\
# Made by `dflash-tui service`.
[Unit]
Description=vLLM with DFlash: {recipe} (dflash-tui)

[Service]
Type=exec
ExecStart=:{command}
{environment}# Tokens and keys (HF_TOKEN, VLLM_API_KEY) belong into this file, not here: NAME=value, chmod 600.
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


def service(args: argparse.Namespace) -> int:
    """`service RECIPE`: print the unit file, and where it goes on stderr."""
    planned = plan_launch_here(read_launch_request(args))
    confirm_trust(planned.resolved.recipe, [planned.plan], args)
    name, text = f"dflash-tui-{planned.plan.recipe}.service", _format_unit(args, planned.plan)
    if args.json:
        print_json(UnitText(name, text))
    else:
        print_data(text.rstrip("\n"))
        print_status(f"write it to ~/.config/systemd/user/{name}, then systemctl --user daemon-reload")
    return 0


def _format_unit(args: argparse.Namespace, plan: Plan) -> str:
    total = system.read_system_memory().total
    reserve = max(total // 20, min(4 << 30, total // 4))
    # The port stays the same, for the clients.
    changes = LaunchChanges(port=plan.port, engine=plan.unpatched_folder if args.engine else None)
    force = ["--force", args.force] if args.force else []
    launch = ["up", *plan.relaunch_request.with_changes(changes).to_argv(), *force]
    words = [sys.executable, "-P", "-m", "dflash_tui", *launch, "--every", str(args.every), "--foreground"]
    variables = {name: os.environ[name] for name in _PASSED_VARIABLES if os.environ.get(name)}
    if not paths.PACKAGE_ROOT.is_relative_to(sys.prefix):  # a checkout, which may be on the path by chance only
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
    """Return a word as systemd.syntax(7) has it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return word if word.replace("-", "").replace("/", "").replace(".", "").isalnum() else f'"{escaped}"'
