"""`service`: write a `systemd --user` unit that launches a recipe, watches it and stops it."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from dflash_tui.cli.console import print_data, print_json, print_status
from dflash_tui.cli.json_lines import UnitText
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.cli.trust import confirm_trust
from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import UsageError
from dflash_tui.engines import inventory
from dflash_tui.engines.hub import model_lookup
from dflash_tui.launch import shutdown, systemd_unit
from dflash_tui.launch.planner import PlannedLaunch, plan_launch_here
from dflash_tui.launch.preflight import runner
from dflash_tui.machine import system
from dflash_tui.machine.process_environment import build_own_path
from dflash_tui.planning.recipes.recipe import RestartPolicy
from dflash_tui.planning.request import LaunchChanges
from dflash_tui.presentation.plan_text import format_restart_limit
from dflash_tui.runs import lifecycle, registry

# Where programs, engines, models and runs are: systemd does not have the variables of the shell. None is secret.
_PASSED_VARIABLES = (
    "PATH", "PYTHONPATH", "CUDA_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME",
    "HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE",
)  # fmt: skip
# Seconds that a stop may need beyond its grace and the wait for the memory: SIGKILL, and the kernel.
_STOP_MARGIN = 30
_MAX_UNIT_BYTES = 1 << 20


def service(args: argparse.Namespace) -> int:
    """`service RECIPE`: print the unit file, or install it for the user's systemd."""
    planned = plan_launch_here(read_launch_request(args))
    confirm_trust(planned.resolved.recipe, [planned.plan], args)
    text = _render_unit(args, planned)
    name = systemd_unit.unit_name(planned.plan.recipe)
    path = paths.user_units_folder() / name
    if args.write:
        _write_unit(path, text, replace=args.replace)
    if args.json:
        print_json(UnitText(name, text, str(path) if args.write else ""))
    if not args.write:
        if not args.json:
            print_data(text.rstrip("\n"))
        print_status(f"--write installs it in {paths.user_units_folder()}")
        return 0
    print_status(f"wrote {path}")
    for line in _describe_obstacles(planned, forced=bool(args.force)):
        print_status(line)
    print_status(_format_next_steps(planned, name))
    return 0


def _render_unit(args: argparse.Namespace, planned: PlannedLaunch) -> str:
    secrets = str(_secrets_file())
    for path, bad in ((sys.executable, "'\"\\"), (secrets, "")):
        if not path.isprintable() or {*path} & {*bad}:
            hint = "move it to a path without quotes, backslashes and control characters"
            raise UsageError("systemd does not accept this path", evidence=repr(path), hint=hint)
    cards, fit = planned.gpus, planned.memory
    unified = bool(fit and cards and all(card.unified for card in cards))
    return systemd_unit.build_unit(
        planned.plan.recipe,
        [sys.executable, "-P", "-m", "dflash_tui", *_up_words(args, planned)],
        environment=_unit_environment(),
        secrets=secrets,
        restarts=_describe_restarts(planned.plan.restart),
        patience=int(lifecycle.STOP_GRACE + shutdown.RELEASE_TIMEOUT) + _STOP_MARGIN,
        memory=systemd_unit.UnitMemory(system.read_system_memory().total, fit.budget if fit and unified else None),
    )


def _unit_environment() -> dict[str, str]:
    """Return the variables with which the unit uses this installation and its folders.

    Raises:
        UsageError: systemd would ignore one of them.
    """
    variables = {name: os.environ[name] for name in _PASSED_VARIABLES if os.environ.get(name)}
    for name, value in variables.items():
        if value != value.encode(errors="ignore").decode():
            what = f"systemd does not accept {name}, which is not UTF-8"
            raise UsageError(
                what, evidence=ascii(value), hint=f"set {name} without that part, and write the unit again"
            )
    if not paths.PACKAGE_ROOT.is_relative_to(sys.prefix):  # a checkout, which may be on the path by chance only
        variables["PYTHONPATH"] = build_own_path()
    return variables


def _describe_restarts(policy: RestartPolicy) -> str:
    if not policy.times:
        return "It is not launched again after a crash; with --set restart.times=3 dflash-tui would do so."
    return f"dflash-tui launches it again after a crash, {format_restart_limit(policy)}."


def _up_words(args: argparse.Namespace, planned: PlannedLaunch) -> list[str]:
    """Return the arguments of the `up` command of the unit; its port is fixed, for the clients."""
    plan = planned.plan
    changes = LaunchChanges(port=plan.port, engine=plan.engine_folder if args.engine else None)
    force = ["--force", args.force] if args.force else []
    argv = plan.relaunch_request.with_changes(changes).to_argv()
    return ["up", *argv, *force, "--every", str(args.every), "--foreground"]


def _secrets_file() -> Path:
    return paths.user_recipes_folder().parent / "service.env"


def _write_unit(path: Path, text: str, *, replace: bool) -> None:
    """Write the unit file; a different one is only replaced when `replace` is set.

    Raises:
        UsageError: there is a different one.
    """
    data = text.encode()
    if path.exists() and not replace:
        with private_files.open_file(path, follow=True) as file:
            if file.read(_MAX_UNIT_BYTES) != data:
                hint = "compare them, then use --replace; without --write the unit is printed"
                raise UsageError(f"{path} already exists and is different", hint=hint)
    private_files.ensure_private_folder(path.parent)
    private_files.replace_private_file(path, data)


def _describe_obstacles(planned: PlannedLaunch, *, forced: bool) -> Iterator[str]:
    """Yield what keeps the unit from starting the server now, and the command that comes before the unit's."""
    plan = planned.plan
    for run in registry.list_living_servers():
        if (run.plan.recipe, run.plan.port) == (plan.recipe, plan.port):  # by hand it started, and holds the memory
            yield f"! {run.id} runs on the port of the unit: stop it before you start the unit"
            yield f"first:        dflash-tui stop {run.id}"
            return
    report = asyncio.run(runner.run_preflight(planned.resolved, plan))
    # The unit takes the key from its own file.
    failed = [] if forced else [check for check in report.failed if check.name != "key"]
    missing = [*_list_missing(planned)]
    for check in failed:
        yield f"! it would not start now: {check.name}: {check.finding}"
    if missing:
        yield f"! not on this machine yet: {', '.join(missing)}"
    if failed or missing:
        yield f"by hand once: {plan.relaunch_request.to_command()}"


def _list_missing(planned: PlannedLaunch) -> Iterator[str]:
    """Yield the engine and the models that a launch would install or fetch; the hub is not asked."""
    if inventory.find_any_engine(Path(planned.plan.engine_folder)) is None:
        yield f"{planned.resolved.engine.distribution} {planned.resolved.engine.vllm}"
    for model in planned.plan.models:
        if model_lookup.find_local_model(model.name, model.revision) is None:
            yield model.name


def _format_next_steps(planned: PlannedLaunch, name: str) -> str:
    key = "VLLM_API_KEY (other machines can reach it, so it needs one), " if planned.plan.is_open else ""
    return "\n".join(
        (
            f"start:        systemctl --user daemon-reload && systemctl --user enable --now {name}",
            f"follow:       journalctl --user -u {name} -f, or dflash-tui attach",
            f"stop:         systemctl --user disable --now {name}",
            "at boot:      loginctl enable-linger; without it the service stops at your last logout",
            f"keys, tokens: {key}HF_TOKEN and the like, one NAME=value per line in {_secrets_file()}, chmod 600",
        )
    )
