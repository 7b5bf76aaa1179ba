"""Whether the login manager, systemd-logind, lets a detached server live when its user's last login ends.

With `KillUserProcesses` it kills what the login started. With `RemoveIPC` it deletes the user's semaphores, by which a
server and its workers wait for each other. Lingering (`loginctl enable-linger`) keeps both from happening.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from dflash_tui.machine.process_environment import build_helper_environment

_TIMEOUT = 5.0
_SYSTEM_UIDS = 1000  # logind leaves the files of system users alone
_BUS = "org.freedesktop.login1"
_ROOT = Path("/")


class LogoutRisk(NamedTuple):
    """What happens to a server when its user's last login ends: the settings that do it, empty when it lives on."""

    settings: tuple[str, ...]
    user: str
    lingers: bool


def read_logout_risk(root: Path = _ROOT, uid: int | None = None) -> LogoutRisk | None:
    """Return what ends a detached server at the end of a login; None without systemd-logind, or where it is silent."""
    if not (root / "run/systemd/seats").is_dir():
        return None
    uid = os.getuid() if uid is None else uid
    manager = _run("busctl", "--json=off", "get-property", _BUS, "/org/freedesktop/login1", f"{_BUS}.Manager",
                   "KillUserProcesses", "RemoveIPC", "KillExcludeUsers")  # fmt: skip
    user = _run("loginctl", "show-user", str(uid), "--property=Name", "--property=Linger")
    return judge_logout(manager, user, uid)


def judge_logout(manager: str | None, user: str | None, uid: int) -> LogoutRisk | None:
    """Return what the answers of `busctl` and `loginctl` come to; None where the first says nothing."""
    lines = (manager or "").split("\n")
    if len(lines) < 2 or not re.match(r"b (true|false)$", lines[0]):
        return None
    fields = _read_fields(user or "")
    name, lingers = fields.get("Name", ""), fields.get("Linger") == "yes"
    excluded = re.findall(r'"([^"]*)"', lines[2]) if len(lines) > 2 else []
    settings = []
    if lines[0] == "b true" and name not in excluded and uid != 0:
        settings.append("KillUserProcesses=yes")
    if lines[1] == "b true" and uid >= _SYSTEM_UIDS:
        settings.append("RemoveIPC=yes")
    return LogoutRisk(() if lingers else tuple(settings), name, lingers)


def _read_fields(text: str) -> Mapping[str, str]:
    return dict(line.partition("=")[::2] for line in text.splitlines())


def _run(*command: str) -> str | None:
    """Return what a command of systemd prints; None when it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=build_helper_environment() | {"LC_ALL": "C"},
            cwd="/",
            timeout=_TIMEOUT,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
