"""A --peer without this program: the question before it is installed there, and what comes of each answer."""

import sys
from pathlib import Path

import pytest

from dflash_tui.cli.main import main
from dflash_tui.peers.far_program import MARK

OVER_TWO = ("demo-cpu", "--peer", "spark-b", "--set", "tensor-parallel-size=2")
COMMANDS = [("plan", *OVER_TWO), ("doctor", *OVER_TWO), ("up", *OVER_TWO, "--detach")]
# This machine plays the other one, and is found out once its program answers.
IS_THIS_MACHINE = "spark-b is this machine"


@pytest.fixture
def far(tmp_path, monkeypatch) -> Path:
    """A host whose program answers once something was installed there; return the file that says how often it was."""
    installed: Path = tmp_path / "installed"
    agent = f"exec {sys.executable} -P -m dflash_tui agent hello"
    install = f'echo x >>{installed}; echo "{MARK} installed /far/program 3.12.3"; cat >/dev/null'
    script = f'case "$words" in *install.sh*) {install};; *) [ ! -e {installed} ] || {agent}; exit 127;; esac'
    (tmp_path / "ssh").write_text(f"#!/bin/sh\nfor words; do :; done\n{script}\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return installed


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_untrusted_recipe_without_terminal_is_refused(far, capsys, words):
    assert main([*words]) == 2
    assert "--install-peers" in capsys.readouterr().err
    assert not far.exists()


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_install_peers_installs_without_asking(far, capsys, words):
    """Once; then the host answers."""
    assert main([*words, "--install-peers"]) == 2
    said = capsys.readouterr().err
    assert "/far/program" in said
    assert IS_THIS_MACHINE in said
    assert far.read_text() == "x\n"


def test_far_program_is_installed_only_once(far, capsys):
    """As where another program of that name is found first."""
    program = far.parent / "ssh"
    program.write_text(program.read_text().replace(f"exec {sys.executable}", "true"))
    assert main([*COMMANDS[0], "--install-peers"]) == 2
    assert "command -v dflash-tui" in capsys.readouterr().err
    assert far.read_text() == "x\n"


@pytest.mark.parametrize(("answer", "is_installed"), [("y", True), ("n", False)])
def test_terminal_asks_before_installing(far, terminal, answer, is_installed):
    window = terminal(*COMMANDS[0])
    assert "spark-b has no dflash-tui" in window.until(b"[y/N]").decode()
    window.type(f"{answer}\r")
    if is_installed:
        window.until(IS_THIS_MACHINE.encode())
    assert window.ended() == 2
    assert far.exists() is is_installed
