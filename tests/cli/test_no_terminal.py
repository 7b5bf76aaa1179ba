"""Where one of the three streams is no terminal nothing opens the panel, which Textual draws on stderr."""

import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dflash_tui import __main__
from dflash_tui.cli import main
from dflash_tui.common import formatting
from dflash_tui.common.errors import UsageError
from dflash_tui.tui import app

STREAMS = ("stdin", "stdout", "stderr")


@pytest.fixture
def slave() -> Iterator[int]:
    """Return our end of a terminal."""
    master, slave = pty.openpty()
    yield slave
    os.close(slave)
    os.close(master)


@pytest.mark.parametrize("missing", [None, *STREAMS])
def test_terminal_requires_all_three_streams(slave, tmp_path, monkeypatch, missing):
    with (tmp_path / "file").open("w") as file, open(slave, closefd=False, mode="w") as screen:
        for name in STREAMS:
            monkeypatch.setattr(sys, name, file if name == missing else screen)
        here = formatting.has_terminal()
        monkeypatch.setattr(sys, "stderr", None)  # as where it was closed
        assert (here, formatting.has_terminal()) == (missing is None, False)


def test_redirected_stderr_gets_words_without_panel(slave):
    """It was filled with the panel's escapes, while the terminal stayed blank."""
    done = subprocess.run(
        [sys.executable, "-m", "dflash_tui", *()],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        check=False,
        timeout=60,
    )
    assert (done.returncode, b"the panel needs a terminal" in done.stderr, b"\x1b" in done.stderr) == (2, True, False)


def test_panel_takes_its_size_from_terminal(monkeypatch):
    """Textual believes these two of whatever is in them: a billion columns took gigabytes, and no key was heard."""
    monkeypatch.setenv("COLUMNS", "999999999")
    monkeypatch.setenv("LINES", "999999999")
    seen = []
    monkeypatch.setattr(app.DflashApp, "run", lambda _panel: seen.append({"COLUMNS", "LINES"} & {*os.environ}))
    app.run_panel()
    assert seen == [set()]


def test_ctrl_c_during_import_shows_no_traceback(monkeypatch):
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__, "_run", interrupted)
    assert __main__.main() == 130


@pytest.mark.parametrize(
    ("variable", "value", "told"),
    [("RECIPE", "nosuch", "no recipe called 'nosuch'"), ("JSON", "1", "needs a terminal")],
)
def test_without_a_word_the_variables_are_obeyed(monkeypatch, capsys, variable, value, told):
    """A container may say by them alone what is launched, and that errors are JSON."""
    monkeypatch.setenv(f"DFLASH_TUI_{variable}", value)
    assert main.main([]) == UsageError.exit_code
    shown = capsys.readouterr()
    assert told in shown.out + shown.err
    assert ('"event": "error"' in shown.out) is (variable == "JSON")
