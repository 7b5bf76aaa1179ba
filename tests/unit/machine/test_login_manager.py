"""What the login manager does to a detached server at the end of a login: by what Ubuntu, Fedora and others answer."""

import pytest

from dflash_tui.launch.preflight import machine
from dflash_tui.launch.preflight.check import CheckLevel
from dflash_tui.machine import system
from dflash_tui.machine.system import LogoutRisk, judge_logout

UBUNTU = 'b false\nb true\nas 1 "root"'
KILLS = 'b true\nb true\nas 1 "root"'
NEITHER = 'b false\nb false\nas 1 "root"'
STAYS, GOES = "Name=ann\nLinger=yes", "Name=ann\nLinger=no"


@pytest.mark.parametrize(
    ("manager", "user", "uid", "settings"),
    [
        (UBUNTU, GOES, 1000, ("RemoveIPC=yes",)),
        (KILLS, GOES, 1000, ("KillUserProcesses=yes", "RemoveIPC=yes")),
        (UBUNTU, STAYS, 1000, ()),
        (NEITHER, GOES, 1000, ()),
        (KILLS, "Name=root\nLinger=no", 0, ()),
        (UBUNTU, GOES, 999, ()),
        (UBUNTU, None, 1000, ("RemoveIPC=yes",)),  # who lingers is unknown, which is no
    ],
)
def test_logout_settings_that_end_server(manager, user, uid, settings):
    risk = judge_logout(manager, user, uid)
    assert risk is not None
    assert risk.settings == settings


@pytest.mark.parametrize(
    ("risk", "level", "word"),
    [
        (LogoutRisk(("RemoveIPC=yes",), "ann", False), CheckLevel.WARN, "loginctl enable-linger ann"),
        (LogoutRisk((), "ann", True), CheckLevel.OK, ""),
    ],
)
def test_the_doctor_says_what_to_do(risk, level, word, monkeypatch):
    monkeypatch.setattr(system, "read_logout_risk", lambda: risk)
    (found,) = machine.check_logout()
    assert (found.level, word in found.fix) == (level, True)
