"""Whatever somebody else writes into a log, a name, an answer or a file: on the command line it stays text."""

import contextlib
import io

import pytest

from dflash_tui.cli import main
from tests.support import escapes, hostile_home

COMMANDS = (
    ("ps", "--all"),
    ("logs", hostile_home.RUN),
    ("why", hostile_home.RUN),
    ("runs", "history"),
    ("attach", hostile_home.RUN, "--plain"),
    ("replay", hostile_home.RUN, "--plain"),
    ("report", hostile_home.RUN),
    ("report", hostile_home.AB),
    ("report", "report.json"),
    ("report", "compare", "report.json", hostile_home.AB),
    ("report", "compare", "result.json", "report.json"),
    ("ab", "list"),
    ("ab", "attach", hostile_home.AB),
    ("recipes",),
    ("recipes", "check"),
    ("plan", "quoted"),
    ("plan", "raw"),
    ("plan", f"./{escapes.all_of_them()[:90]}.yaml"),
    ("patch", "status", "demo-cpu"),
    ("patch", "diff", "raw"),
    ("stop", escapes.all_of_them()),
)
AS_JSON = (
    ("ps", "--all"),
    ("why", hostile_home.RUN),
    ("attach", hostile_home.RUN),
    ("report", hostile_home.AB),
    ("ab", "list"),
    ("ab", "attach", hostile_home.AB),
    ("plan", "quoted"),
)


def told(*words: str) -> str:
    """Return all that a command writes."""
    seen = io.StringIO()
    with contextlib.redirect_stdout(seen), contextlib.redirect_stderr(seen):
        main.main(words)
    return seen.getvalue()


def others(text: str) -> list[str]:
    """Return the lines that say nothing of somebody else's, without the width of their columns."""
    return [" ".join(line.split()) for line in text.splitlines() if escapes.SEEN not in line]


def test_every_command_writes_only_text(tmp_path, monkeypatch):
    """Nothing acts on the terminal, and what stands beside a hostile text is what stands beside a harmless one."""
    monkeypatch.chdir(tmp_path)
    hostile_home.made(escapes.all_of_them(), tmp_path)
    quoted = 0
    for words in (*COMMANDS, *((*words, "--json") for words in AS_JSON)):
        said = told(*words)
        assert said, words
        assert not escapes.acting(said), words
        assert "Traceback" not in said, words
        assert not escapes.shown(said, columns=2000, lines=50)[1], words
        quoted += escapes.SEEN in said
    assert quoted > 15, "a world in which nobody says anything proves nothing"


@pytest.mark.parametrize(
    "words",
    [("ps", "--all"), ("why", hostile_home.RUN), ("report", hostile_home.AB), ("ab", "attach", hostile_home.AB)],
)
def test_lines_around_hostile_name_stay(words, tmp_path, monkeypatch, folders):
    """The lines around a hostile name are those around a harmless one, and there are as many."""
    seen = []
    for name, said in (("harmless", f"{escapes.SEEN} x {escapes.SEEN}"), ("hostile", escapes.all_of_them())):
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / name))
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / name))
        hostile_home.made(said, tmp_path)
        seen.append(told(*words).replace(f"/{name}/", "/"))
    harmless, hostile = seen
    assert others(hostile) == others(harmless)
    assert len(hostile.splitlines()) == len(harmless.splitlines())
