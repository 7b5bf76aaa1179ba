"""`--host HOST`, with another home folder in the place of that host: whose exit code, streams and terminal it is."""

import json
import os
import subprocess
import sys

import msgspec
import pytest
from msgspec.structs import replace

from dflash_tui import __version__
from dflash_tui.cli.main import main
from dflash_tui.machine.network import Network
from dflash_tui.peers.connection import Greeting
from dflash_tui.peers.far_program import MARK
from tests.support import escapes
from tests.support.far_home import FarHome
from tests.support.pty_terminal import ENTER, LEAVE, NO_MOUSE

PROGRAM = [sys.executable, "-P", "-m", "dflash_tui"]
GREETING = Greeting(__version__, "b", "aarch64", "boot", 5, 9, Network())


@pytest.fixture
def far(tmp_path, monkeypatch) -> FarHome:
    """Return a host that has this program."""
    monkeypatch.setenv("PATH", os.environ["PATH"])
    home = FarHome(tmp_path / "far")
    home.put_program()
    return home


def put_far_program(far: FarHome, then: str, **greeting: object) -> None:
    """Let ssh itself play a host: it greets as `greeting` says, and whatever else is run is `then`."""
    said = msgspec.json.encode({"event": "answer", "value": replace(GREETING, **greeting)}).decode()
    hello = f"printf '%s\\n' '{said}'; cat >/dev/null; exit"
    far.put_answer(f"for words; do :; done\ncase $words in *'agent hello'*) {hello};; esac\n{then}")


def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run this program on the host, without a terminal."""
    command = [*PROGRAM, "--host", "spark-b", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | more, input="")


def test_far_streams_and_exit_code_pass_through(far):
    listed = run("recipes", "--json")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "demo-cpu" in [json.loads(line)["name"] for line in listed.stdout.splitlines()]
    wrong = run("plan", "it's \\ $HOME !", "--json")
    assert wrong.returncode == 2
    assert "it's \\ $HOME !" in json.loads(wrong.stdout)["what"]
    assert "error" in wrong.stderr


def test_far_stderr_sends_no_escapes_to_terminal(far, tmp_path):
    """Of ssh and of what it reaches, also where a character comes in two pieces."""
    hostile = tmp_path / "hostile"
    hostile.write_bytes(b"".join(escapes.raw().values()) + escapes.all_of_them().encode() + b"\r\n")
    put_far_program(far, f"cat {hostile} >&2; printf '\\303' >&2; sleep 0.1; printf '\\244.' >&2; exit 4")
    done = run("ps")
    assert (done.returncode, escapes.acting(done.stderr), done.stderr[-2:]) == (4, set(), "ä.")
    assert done.stderr.count(escapes.SEEN) == escapes.all_of_them().count(escapes.SEEN)


def test_piped_input_arrives(far):
    """A log in a pipe is read there; the failure in it has an exit code of its own."""
    log = "ValueError: Free memory on device cuda:0 (9.0/80.0 GiB) on startup is less than desired GPU memory\n"
    command = [*PROGRAM, "--host", "spark-b", "why", "-", "--json"]
    there = subprocess.run(command, capture_output=True, text=True, check=False, input=log)
    here = subprocess.run([*PROGRAM, "why", "-", "--json"], capture_output=True, text=True, check=False, input=log)
    assert (there.returncode, there.stdout) == (here.returncode, here.stdout)
    assert there.stdout


def test_colour_variables_travel_but_no_token(far, tmp_path):
    near, there = tmp_path / "near-variables", tmp_path / "far-variables"
    put_far_program(far, f'env >{near}; sh -c "$words"')
    program = far.folder / ".local" / "bin" / "dflash-tui"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nenv >{there}\n")
    program.chmod(0o755)
    key = "Pl4nted-Pl4nted-k3y/zQ"
    secrets = {"VLLM_API_KEY": key, "HF_TOKEN": key}
    assert run("ps", NO_COLOR="1", COLORTERM="true 'colour'", HOME=str(far.folder), **secrets).returncode == 0
    variables = there.read_text()
    assert {"NO_COLOR=1", "COLORTERM=true 'colour'", "DFLASH_TUI_CALLED_AS=spark-b"} <= {*variables.splitlines()}
    assert key not in variables + near.read_text()


def test_missing_far_program_is_refused_with_hint(far, capsys):
    far.put_answer("exit 127")
    assert main(["--host", "spark-b", "ps", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert (said["exit_code"], "--install-peers" in said["do"]) == (2, True)


@pytest.mark.parametrize(("answer", "code"), [("y", 7), ("n", 2)])
def test_terminal_is_asked_before_far_install(far, terminal, tmp_path, answer, code):
    """Once it is there, what was asked for is run."""
    installed = tmp_path / "installed"
    put_far_program(far, "exit 7")
    there = (far.root / "near" / "ssh").read_text()
    install = f'touch {installed}; echo "{MARK} installed /far/program 3.12"; cat >/dev/null; exit'
    first = f"case $words in *install.sh*) {install};; esac\n[ -e {installed} ] || exit 127"
    far.put_answer(f"for words; do :; done\n{first}\n{there}")
    window = terminal("--host", "spark-b")
    window.until(b"[y/N]")
    window.type(f"{answer}\r")
    assert window.ended() == code
    assert installed.exists() is (answer == "y")


@pytest.mark.parametrize(
    ("greeting", "code", "word"),
    [({"version": "9.9.9", "is_own": True}, 2, "--install-peers"), ({"version": "9.9.9"}, 3, "9.9.9")],
)
def test_another_program_there(far, greeting, code, word):
    """One that the user installed there, and that speaks our protocol, is run and named."""
    put_far_program(far, "exit 3", **greeting)
    done = run("ps")
    assert (done.returncode, word in done.stderr) == (code, True)


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ("ssh: Could not resolve hostname spark-b: Name or service not known", "~/.ssh/config"),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", "ssh-keygen -R"),
    ],
)
def test_unreachable_host_is_reported_in_one_sentence(far, said, word, capsys):
    far.put_answer(f"echo '{said}' >&2; exit 255")
    assert main(["--host", "spark-b"]) == 2
    assert word in capsys.readouterr().err


def test_invalid_other_host_is_refused(capsys):
    assert main(["--host=-oProxyCommand=touch x", "ps"]) == 2
    assert "-oProxyCommand=touch x" in capsys.readouterr().err


def test_broken_connection_is_reported_as_own_error(far):
    put_far_program(far, "echo half of it; exit 255")
    done = run("ps", "--json")
    assert done.returncode == 1
    begun, error = done.stdout.splitlines()
    assert (begun, json.loads(error)["exit_code"]) == ("half of it", 1)
    assert "dflash-tui --host spark-b" in json.loads(error)["do"]


def test_broken_far_panel_restores_terminal(far, terminal):
    """Of what the far program said, nothing else is undone: it draws in this terminal."""
    put_far_program(far, "printf '\\033[?1049h\\033[?1003h'; stty raw -echo; echo cut >&2; exit 255")
    window = terminal("--host", "spark-b", "attach")
    seen = window.until(ENTER)
    seen += window.until(b"--host spark-b")
    assert window.ended() == 1
    after = seen.partition(ENTER)[2]
    assert (after.count(LEAVE), after.count(NO_MOUSE), b"cut" in after) == (1, 1, True)
    assert b"\r\n" in after.partition(LEAVE)[2]
