"""A connection to another host, with a program in place of ssh: what is refused, and what ends it."""

import asyncio
import stat
from pathlib import Path

import pytest

from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.events import Preparing, Step
from dflash_tui.machine.network import Network
from dflash_tui.peers import connection, transport
from dflash_tui.peers.connection import (
    PROTOCOL,
    Done,
    Greeting,
    RankProgress,
    Refused,
    encode_line,
    open_connection,
)
from dflash_tui.peers.transport import NeedsProgram

GREETING = Greeting(PROTOCOL, "0.1.0", "b", "aarch64", "boot", 5, 9, Network())
SAID = encode_line("hello", 1, GREETING).decode()


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


async def ask(timeout: float = 20.0):
    async with open_connection("spark-b") as peer:
        return await peer.ask("stop", Done, timeout, run="r")


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
        asyncio.run(ask())
    assert error.value.hint
    assert error.value.evidence


@pytest.mark.parametrize("host", ["-oProxyCommand=touch x", "", "a b", "$(x)"])
def test_invalid_host_name_never_reaches_ssh(host):
    with pytest.raises(UsageError, match="not a host name"):
        transport.build_agent_command(host)


def test_ssh_is_given_words_and_asks_nothing():
    command = transport.build_agent_command("ann@spark-b")
    assert command[:2] == ["ssh", "-T"]
    assert command[-3:-1] == ["--", "ann@spark-b"]
    assert {"BatchMode=yes", "ControlPath=none"} <= {*command}
    assert not any("StrictHostKeyChecking" in word for word in command)


def test_remote_command_is_safe_in_every_shell():
    """The user's own reads them first, which may be csh or fish: one line, nothing but single quotes around it."""
    for command in (transport.build_agent_command("b"), transport.build_install_command("b", "12", "x-1.whl")):
        words = command[-1]
        assert words.startswith("sh -c '")
        assert (words.count("'"), {*"\n!\\"} & {*words}) == (2, set())


@pytest.mark.parametrize(("hosts", "is_wrong"), [(["a", "a"], True), (["a", "b"], False), (["local", "local"], False)])
def test_a_host_named_twice(hosts, is_wrong):
    try:
        transport.check_hosts(hosts)
    except UsageError:
        assert is_wrong
    else:
        assert not is_wrong


def test_another_protocol_is_refused(ssh):
    ssh(f"""printf '%s' '{SAID.replace(f'"protocol":{PROTOCOL}', '"protocol":99')}'; cat >/dev/null""")
    with pytest.raises(UsageError, match="another version"):
        asyncio.run(ask())


@pytest.mark.parametrize(("is_own", "kind"), [("true", NeedsProgram), ("false", UsageError)])
def test_own_program_with_other_protocol_is_replaceable(is_own, kind, ssh):
    said = SAID.replace(f'"protocol":{PROTOCOL}', '"protocol":99').replace('"is_own":false', f'"is_own":{is_own}')
    ssh(f"printf '%s' '{said}'; cat >/dev/null")
    with pytest.raises(UsageError) as error:
        asyncio.run(ask())
    assert type(error.value) is kind


def test_missing_program_on_host_raises_needs_program(ssh):
    """For who asks whether to install it; a word on stderr says it where a shell ends with another code."""
    for script in ("exit 127", "echo 'bash: dflash-tui: command not found' >&2; exit 1"):
        ssh(script)
        with pytest.raises(NeedsProgram) as error:
            asyncio.run(ask())
        assert error.value.host == "spark-b"


def test_login_shell_output_is_skipped(ssh):
    ssh(f"""printf 'Welcome\\n\\033[2J{{"say":"hello"}}\\n%s' '{SAID}'; read a; read b
    printf '%s' '{encode_line("answer", 2, Done()).decode()}'; cat >/dev/null""")
    assert asyncio.run(ask()) == Done()


def test_a_refusal_is_an_error_of_ours(ssh):
    refusal = encode_line("refused", 2, Refused("no room", "x", "y", 4)).decode()
    ssh(f"printf '%s' '{SAID}'; read a; read b; printf '%s' '{refusal}'; cat >/dev/null")
    with pytest.raises(DflashError, match="spark-b: no room"):
        asyncio.run(ask())


def test_ssh_gets_no_secret_of_ours(ssh, tmp_path, monkeypatch):
    """What it hands to a proxy command or to the other host is not ours to choose."""
    monkeypatch.setenv("HF_TOKEN", "planted-4711-secret-token")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    ssh(f"env > {tmp_path}/env; printf '%s' '{SAID}'; sleep 60")

    async def look() -> None:
        async with open_connection("spark-b"):
            pass

    asyncio.run(look())
    variables = (tmp_path / "env").read_text().splitlines()
    assert ("SSH_AUTH_SOCK=/run/agent" in variables, any("planted" in line for line in variables)) == (True, False)


def test_connection_lost_mid_request_reports_ssh_error(ssh):
    ssh(f"printf '%s' '{SAID}'; read a; read b; echo 'client_loop: send disconnect' >&2; exit 255")
    with pytest.raises(DflashError) as error:
        asyncio.run(ask())
    assert "send disconnect" in error.value.evidence


def test_a_preparation_over_there_is_reported_here(ssh):
    step = encode_line("preparing", 0, RankProgress(Preparing(1.0, Step.INSTALL, "halfway", 0.5))).decode()
    step += encode_line("answer", 2, Done()).decode()
    ssh(f"printf '%s' '{SAID}'; read a; read b; printf '%s' '{step}'; cat >/dev/null")
    events: list[Preparing] = []

    async def look() -> None:
        async with open_connection("spark-b") as peer:
            peer.report = events.append
            await peer.ask("stop marked", Done, 20.0)

    asyncio.run(look())
    assert [event.fraction for event in events] == [0.5]


def test_agent_gets_beats_during_long_request(ssh, monkeypatch):
    """It ends when it hears nothing for half a minute, and an installation takes longer."""
    monkeypatch.setattr(connection, "_IDLE_BEAT", 0.02)
    done = encode_line("answer", 2, Done()).decode()
    count = (
        """n=0; while [ $n -lt 3 ] && read l; do case "$l" in *'"beat"'*'"renews":false'*) n=$((n+1));; esac; done"""
    )
    ssh(f"printf '%s' '{SAID}'; {count}; printf '%s' '{done}'; cat >/dev/null")
    assert asyncio.run(ask()) == Done()
