"""A connection to another host, with a program in place of ssh: what is refused, and what ends it."""

import asyncio
import stat
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.events import Preparing, Step, encode
from dflash_tui.machine.network import Network
from dflash_tui.peers import transport
from dflash_tui.peers.connection import Greeting, greet_host
from dflash_tui.peers.connection import ask as ask_host
from dflash_tui.peers.transport import NeedsProgram

GREETING = Greeting(__version__, "b", "aarch64", "boot", 5, 9, Network())


def build_answer(value: object) -> str:
    return msgspec.json.encode({"event": "answer", "value": value}).decode()


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """Return a function that puts a shell script into the place of ssh."""

    def put(script: str) -> Path:
        program: Path = tmp_path / "ssh"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        return program

    return put


def ask() -> None:
    asyncio.run(ask_host("spark-b", "stop", type(None), 20.0, run="r"))


@pytest.mark.parametrize(
    ("code", "errors", "words"),
    [
        (255, "ssh: Could not resolve hostname spark-b: Name or service not known", "no host called spark-b"),
        (255, "ann@spark-b: Permission denied (publickey).", "rejects your ssh key"),
        (255, "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.", "host key"),
        (255, "No ED25519 host key is known for spark-b.\nHost key verification failed.", "not known to ssh"),
        (255, "ssh: connect to host spark-b port 22: Connection refused", "no ssh server"),
        (255, "ssh: connect to host spark-b port 22: Connection timed out", "cannot be reached"),
        (127, "sh: 1: exec: dflash-tui: not found", "has no dflash-tui"),
    ],
)
def test_why_a_host_is_not_reached(code, errors, words, ssh):
    """One sentence, the evidence and what to do; nothing was started."""
    quoted = errors.replace("'", "")
    ssh(f"printf '%s\\n' '{quoted}' >&2; exit {code}")
    with pytest.raises(UsageError, match=words) as error:
        ask()
    assert error.value.hint
    assert error.value.evidence


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "", "a b", "$(x)"])
def test_invalid_host_name_never_reaches_ssh(host):
    with pytest.raises(UsageError, match="not a host name"):
        transport.build_agent_command(host, "hello")


def test_ssh_is_given_words_and_asks_nothing():
    command = transport.build_agent_command("ann@spark-b", "hello")
    assert command[:2] == ["ssh", "-T"]
    assert command[-3:-1] == ["--", "ann@spark-b"]
    assert {"BatchMode=yes", "ControlPath=none"} <= {*command}
    assert not any("StrictHostKeyChecking" in word for word in command)


def test_remote_command_is_safe_in_every_shell():
    """The user's own reads them first, which may be csh or fish: one line, nothing but single quotes around it."""
    for command in (
        transport.build_agent_command("b", "stop"),
        transport.build_install_command("b", "exit 1", "x-1.whl"),
    ):
        words = command[-1]
        script, _, rest = words.removeprefix("sh -c '").partition("'")
        assert {*"\n!\\"} & {*script} == set()
        assert {*'\n!"'} & {*rest} == set()


@pytest.mark.parametrize(("hosts", "is_wrong"), [(["a", "a"], True), (["a", "b"], False), (["local", "local"], False)])
def test_a_host_named_twice(hosts, is_wrong):
    try:
        transport.check_hosts(hosts)
    except UsageError:
        assert is_wrong
    else:
        assert not is_wrong


@pytest.mark.parametrize(
    ("version", "is_own", "is_refused"), [("9", True, True), ("9", False, False), (__version__, True, False)]
)
def test_own_program_of_other_release_needs_replacing(version, is_own, is_refused, ssh):
    said = build_answer(replace(GREETING, version=version, is_own=is_own))
    ssh(f"read a; printf '%s\\n' '{said}'")
    if not is_refused:
        assert asyncio.run(greet_host("spark-b", any_release=True)).greeting.version == version
        return
    with pytest.raises(NeedsProgram):
        asyncio.run(greet_host("spark-b", any_release=True))


def test_missing_program_on_host_raises_needs_program(ssh):
    """For who asks whether to install it; a word on stderr says it where a shell ends with another code."""
    for script in ("exit 127", "echo 'bash: dflash-tui: command not found' >&2; exit 1"):
        ssh(script)
        with pytest.raises(NeedsProgram) as error:
            ask()
        assert error.value.host == "spark-b"


def test_login_shell_output_is_skipped(ssh):
    ssh(f"""printf 'Welcome\\n\\033[2J{{"event":"hello"}}\\n%s\\n' '{build_answer(None)}'; cat >/dev/null""")
    ask()


def test_a_refusal_is_an_error_of_ours(ssh):
    ssh("""printf '{"event":"error","what":"no room","do":"y","exit_code":4}\\n'; cat >/dev/null""")
    with pytest.raises(DflashError, match="spark-b: no room"):
        ask()


def test_unexpected_answer_is_refused(ssh):
    ssh(f"printf '%s\\n' '{build_answer([1])}'")
    with pytest.raises(DflashError, match="unexpected answer"):
        ask()


def test_ssh_gets_no_secret_of_ours(ssh, tmp_path, monkeypatch):
    """What it hands to a proxy command or to the other host is not ours to choose."""
    monkeypatch.setenv("HF_TOKEN", "planted-4711-secret-token")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    ssh(f"env > {tmp_path}/env; printf '%s\\n' '{build_answer(None)}'")
    ask()
    variables = (tmp_path / "env").read_text().splitlines()
    assert ("SSH_AUTH_SOCK=/run/agent" in variables, any("planted" in line for line in variables)) == (True, False)


def test_connection_lost_mid_request_reports_ssh_error(ssh):
    ssh("read a; echo 'client_loop: send disconnect' >&2; exit 255")
    with pytest.raises(DflashError) as error:
        ask()
    assert "send disconnect" in error.value.evidence


def test_a_preparation_over_there_is_reported_here(ssh):
    step = encode(Preparing(1.0, Step.INSTALL, "halfway", 0.5)).decode()
    ssh(f"printf '%s\\n%s\\n' '{step}' '{build_answer(None)}'")
    events: list[Preparing] = []
    asyncio.run(ask_host("spark-b", "prepare", type(None), report=events.append))
    assert [event.fraction for event in events] == [0.5]
