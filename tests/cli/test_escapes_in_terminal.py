"""The panel in a real terminal, in a world where everything that others write acts on terminals: only text arrives."""

import re
import shutil
import subprocess
import sys
import time

import pyte
import pytest

from dflash_tui.common.sanitizer import clean_line
from dflash_tui.events import Health
from dflash_tui.monitoring import observer
from tests.support import escapes, hostile_home
from tests.support.pty_terminal import Terminal
from tests.support.waiting import PATIENCE

# What a terminal takes as more than text, by ECMA-48: sequences with parameters, strings, and single controls.
SEQUENCE = re.compile(
    r"\x1b\[(?P<csi>[0-?]*[ -/]*[@-~])|\x1b(?P<string>[\]PX^_][^\x07\x1b]*)(?:\x07|\x1b\\)|\x1b(?P<escape>[ -/]*[0-~])"
    r"|(?P<control>[\x00-\x1f\x7f-\x9f])"
)
# Places and colours; of these the last letter says enough.
_DRAWING = re.compile(r"[0-9;:]*(?=[HmKJ]$)")
SAID = escapes.all_of_them()
# A log's line ends at a carriage return, which names and answers lose.
HARMLESS = "\r".join(clean_line(part) for part in SAID.split("\r"))


class Seen:
    """What a panel writes: the picture that it makes in a terminal, and the bytes themselves."""

    def __init__(self, panel: Terminal) -> None:
        self.panel, self.raw = panel, b""
        self.screen = escapes.Terminal(120, 36)
        self._stream = pyte.ByteStream(self.screen)

    def _take(self, data: bytes) -> None:
        self.raw += data
        self._stream.feed(data)

    def until(self, words: str, *, quiet: int = 0, limit: float = PATIENCE) -> list[str]:
        """Return the rows when they have these words, and stay for `quiet` tenths of a second."""
        deadline, since = time.monotonic() + limit, 0
        while since < quiet or words not in "\n".join(self.rows()):
            assert time.monotonic() < deadline, "\n".join(self.rows())
            data = self.panel.read()
            self._take(data)
            since = 0 if data else since + 1
        return self.rows()

    def leave(self) -> None:
        self.panel.type("q")
        while data := self.panel.read(5.0):
            self._take(data)
        assert self.panel.ended() == 0

    def rows(self) -> list[str]:
        return [row.rstrip() for row in self.screen.display]

    def state(self) -> tuple[object, ...]:
        """Return what a terminal keeps besides its picture; where a hidden cursor is, nobody sees."""
        screen = self.screen
        modes = frozenset(screen.mode), frozenset(screen.tabstops), screen.charset, screen.margins
        return screen.cursor.hidden, screen.title, screen.icon_name, len(screen.savepoints), *modes


def kinds(raw: bytes) -> set[str]:
    """Return what is in the bytes besides text, without places and colours."""
    found = set()
    for match in SEQUENCE.finditer(raw.decode()):
        [(kind, what)] = [(name, text) for name, text in match.groupdict().items() if text is not None]
        found.add(f"{kind} {_DRAWING.sub('', what)!r}")
    return found


def text(raw: bytes) -> str:
    return SEQUENCE.sub("", raw.decode())


# Keys, and words of the picture that each of them makes.
TOUR = (
    ("", "FAILED"),
    ("l", "following"),
    ("1", "✗ quoted"),
    ("\x1b[B", "does not load"),
    ("3", "refused"),
    ("v", "INTERRUPTED"),
)


def test_hostile_texts_change_no_terminal_state(terminal, tmp_path, folders):
    """A failed run, its log, the list of runs, recipes and an A/B: the same modes and cursor as with harmless texts."""
    hostile_home.made(HARMLESS, tmp_path)
    harmless, drawn = Seen(terminal("attach", hostile_home.RUN)), []
    for key, words in TOUR:
        harmless.panel.type(key)
        drawn.append((harmless.until(words, quiet=6), harmless.state()))
    harmless.leave()
    for folder in folders.iterdir():
        shutil.rmtree(folder)
    hostile_home.made(SAID, tmp_path)
    hostile = Seen(terminal("attach", hostile_home.RUN))
    for (key, words), (_, state) in zip(TOUR, drawn, strict=True):
        hostile.panel.type(key)
        hostile.until(words, quiet=2)
        assert hostile.state() == state
    hostile.leave()
    assert hostile.state() == harmless.state()
    assert kinds(hostile.raw) == kinds(harmless.raw)
    assert len(kinds(SAID.encode(errors="replace")) - kinds(harmless.raw)) > 10, (
        "a world that does nothing proves nothing"
    )
    assert not escapes.acting(text(hostile.raw))
    assert sum(escapes.SEEN in "\n".join(picture) for picture, _ in drawn) > 2


@pytest.mark.long
def test_hostile_server_is_drawn_as_text_only(terminal, launch, tmp_path):
    """A living one: its log, its metrics, what it answers to prompts and why it refuses them; in lines as well."""
    (tmp_path / "said").write_bytes(SAID.encode(errors="surrogateescape"))
    allowed = Seen(terminal())
    allowed.until("demo-cpu", quiet=6)
    allowed.leave()
    run = launch(f"says={tmp_path / 'said'}")
    seen = Seen(terminal("attach", run.id))
    seen.until("warm-up")
    while observer.replay_run(run).health is not Health.WARM:
        seen.until(escapes.SEEN, quiet=2)
    seen.until("warm-up", quiet=5)  # as long as a panel takes to read that, and more
    seen.panel.type("b")
    seen.until("HTTP 400")
    seen.leave()
    assert kinds(seen.raw) <= kinds(allowed.raw)
    assert not escapes.acting(text(seen.raw))
    for words in (("bench", run.id), ("logs", run.id), ("why", run.id), ("ps",), ("report", run.id)):
        command = [sys.executable, "-m", "dflash_tui", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=240, check=False)
        said = done.stdout.decode()
        assert not escapes.acting(said), words
        assert "Traceback" not in said
        assert escapes.SEEN in said or words[0] in {"why", "ps", "report"}, words
