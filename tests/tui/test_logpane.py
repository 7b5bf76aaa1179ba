"""The log pane: levels, follow, search, and lines that look bad and are not."""

import pytest
from rich.cells import cell_len

from dflash_tui.events import LogLine, Problem
from dflash_tui.run_state.state import MAX_LINES
from dflash_tui.tui.widgets.log_pane import LogPane, LogRows
from dflash_tui.vllm_output import log_reader
from dflash_tui.vllm_output.known_failures import explain_benign_warning
from tests.support import recordings
from tests.tui.conftest import HOSTILE, panel_on_run
from tests.tui.panel import shows, wait_for

# What is left of warnings when the known ones are taken away: each of these says something about its run.
TOLD = ("engine core exited unexpectedly", "random seed is set to 0")


def pane_of(panel) -> LogPane:
    pane = panel.run_screen.query_one(LogPane)
    assert isinstance(pane, LogPane)
    return pane


def texts(pane: LogPane) -> list[str]:
    return [row.text for row in pane.rows.rows]


def lines(now: float, count: int, level: str = "INFO", words: str = "line") -> list[LogLine]:
    return [LogLine(now + place, f"{words} {place}", level, "x.py") for place in range(count)]


def warnings(name: str) -> list[str]:
    reader = log_reader.LogReader(0.0, 0.0)
    events = reader.feed(recordings.raw(name) + b"\n")
    return [event.text for event in events if isinstance(event, LogLine) and event.level == "WARNING"]


@pytest.mark.parametrize("name", [name for name in recordings.names() if "fail" not in name and "kill" not in name])
def test_every_warning_of_successful_run_is_explained(name):
    assert [
        line for line in warnings(name) if not explain_benign_warning(line) and not any(told in line for told in TOLD)
    ] == []


@pytest.mark.parametrize("name", [name for name in recordings.names() if "fail" in name])
def test_no_failure_cause_is_called_harmless(name):
    reader = log_reader.LogReader(0.0, 0.0)
    events = reader.feed(recordings.raw(name) + b"\n")
    problems = [event.text for event in events if isinstance(event, Problem)]
    assert problems
    assert not [text for text in problems if explain_benign_warning(text)]


async def test_harmless_warnings_are_marked_and_explained_once(live):
    async with panel_on_run(live) as (panel, pilot):
        await pilot.press("l")
        shown = texts(pane_of(panel))
        marked = [line for line in shown if line[9:11] == "~ "]
        reasons = [line for line in shown if "↳ harmless: " in line]
        assert len(marked) > len(reasons) > 3
        assert len(reasons) == len(set(reasons))


async def test_log_level_hides_lower_levels(live):
    now = live[1]
    extra = [
        LogLine(now, "it is bad", "ERROR", "x.py"),
        LogLine(now, "Traceback (most recent call last):"),
        LogLine(now, '  File "y.py", line 3'),
        LogLine(now, "Enforce eager set, disabling torch.compile", "WARNING", "x.py"),
        LogLine(now, "all is well", "INFO", "x.py"),
    ]
    async with panel_on_run(live, *extra) as (panel, pilot):
        pane = pane_of(panel)
        await pilot.press("l")
        await wait_for(pilot, lambda: pane.rows.width > 100)
        everything = len(texts(pane))
        await pilot.press("v")
        assert "warnings and worse: " in str(pane_of(panel).border_title)
        assert 5 < len(texts(pane)) < everything
        await pilot.press("v")
        assert [line[11:] for line in texts(pane)][-3:] == [
            f"{extra[0].text}  [x]", extra[1].text, extra[2].text
        ]  # fmt: skip
        panel.run_screen.view.take(LogLine(now + 1, "said later", "INFO", "x.py"))
        panel.run_screen.view.take(LogLine(now + 1, "bad later", "ERROR", "x.py"))
        panel.run_screen.view.write_log()
        assert texts(pane)[-1].endswith("bad later  [x]")
        await pilot.press("v")
        assert len(texts(pane)) == everything + 2


async def test_key_scrolls_log_sideways_by_half_width(live):
    now = live[1]
    async with panel_on_run(live, LogLine(now, "x" * 900, "INFO", "x.py")) as (panel, pilot):
        await pilot.press("l")
        pane = pane_of(panel)
        await wait_for(pilot, lambda: pane.max_scroll_x > 400)
        await pilot.press("right", "right", "left")
        await wait_for(pilot, lambda: pane.scroll_offset.x == pane.size.width // 2)


async def test_scrolling_up_pauses_following_until_end_key(live):
    now = live[1]
    async with panel_on_run(live, *lines(now, 200)) as (panel, pilot):
        pane = pane_of(panel)
        await shows(pilot, "server.log · following")
        await pilot.press("up", "up")
        await shows(pilot, "paused, G follows")
        at = pane.scroll_offset.y
        for line in lines(now + 300, 50, words="later"):
            panel.run_screen.view.take(line)
        panel.run_screen.view.write_log()
        await pilot.pause()
        assert pane.scroll_offset.y == at
        await pilot.press("l")
        await pilot.press("G")
        await shows(pilot, "later 49", "following")
        await pilot.press("g")
        await pilot.pause()
        assert pane.scroll_offset.y == 0


async def test_search_finds_counts_and_steps(live):
    now = live[1]
    async with panel_on_run(live, *lines(now, 60, words=f"Needle {HOSTILE}"), *lines(now + 99, 300)) as (panel, pilot):
        pane = pane_of(panel)
        await pilot.press("slash", *"needle")
        await pilot.pause()
        assert "“needle” 60 of 60" in str(pane_of(panel).border_title)
        await pilot.press("enter", "N", "N", "n")
        await pilot.pause()
        assert "paused, G follows · “needle” 59 " in str(pane_of(panel).border_title)
        assert texts(pane)[pane.at].endswith("58  [x]")
        await pilot.press("slash", "backspace", "backspace", *"ghi")
        await pilot.pause()
        assert "0 matches" in str(pane_of(panel).border_title)
        await pilot.press("escape")
        await shows(pilot, "server.log · following")
        assert panel.focused is pane


async def test_log_flood_is_written_in_pieces_completely(live):
    now = live[1]
    async with panel_on_run(live) as (panel, _):
        for line in lines(now, 3 * MAX_LINES):
            panel.run_screen.view.take(line)
        pane = pane_of(panel)
        for _ in range(12):
            panel.run_screen.view.write_log()
        assert len(texts(pane)) == MAX_LINES
        assert texts(pane)[-1].endswith(f"line {3 * MAX_LINES - 1}  [x]")
        assert texts(pane)[0].endswith(f"line {2 * MAX_LINES}  [x]")


async def test_the_mouse_selects_lines(live):
    """Rows tell their places while the mouse is over them: what is dragged over is what is copied."""
    now = live[1]
    async with panel_on_run(live, *lines(now, 100)) as (panel, pilot):
        await pilot.press("l")
        await pilot.pause()
        pane = pane_of(panel)
        first = pane.scroll_offset.y + 3
        await pilot.mouse_down(pane, offset=(1, 4))
        await pilot.hover(pane, offset=(40, 6))
        await pilot.mouse_up(pane, offset=(40, 6))
        selected = (panel.screen.get_selected_text() or "").split("\n")
        assert selected[:2] == texts(pane)[first : first + 2]
        assert len(selected) == 3


ROUTES = [LogLine(0.0, f"Route: /v{place}, Methods: GET", "INFO", "launcher.py") for place in range(4)]
ANSWERED = [LogLine(0.0, f'127.0.0.1:{place} - "POST /v1/completions HTTP/1.1" 200 OK', "INFO") for place in range(3)]
REFUSED = LogLine(0.0, '127.0.0.1:9 - "POST /v1/completions HTTP/1.1" 400 Bad Request', "INFO")


def rows_of(lines: list[LogLine], **settings: object) -> LogRows:
    rows = LogRows()
    for name, value in settings.items():
        setattr(rows, name, value)
    rows.take(lines)
    return rows


def test_routes_and_answered_requests_fold_into_rows():
    """A request that was refused has its own."""
    rows = rows_of([*ROUTES, *ANSWERED, REFUSED, ANSWERED[0]])
    assert [row.text[9:].strip() for row in rows.rows] == [
        "▸ 4 routes; z opens",
        "▸ 3 answered requests; z opens",
        REFUSED.text,
        ANSWERED[0].text,
    ]
    assert [rows.find_row(line) for line in range(9)] == [0, 0, 0, 0, 1, 1, 1, 2, 3]
    assert len(rows_of([*ROUTES, *ANSWERED, REFUSED], fold=False)) == 8


@pytest.mark.parametrize("width", [24, 200])
def test_long_log_row_wraps_without_loss(width):
    words = "Traceback of /a/long/path/" + "x" * 40 + " with words, 中文 " * 9 + HOSTILE
    rows = rows_of([LogLine(0.0, words, "INFO", "x.py")], wrap=True, width=width)
    assert max(cell_len(row.text) for row in rows.rows) <= width
    assert "".join("".join(row.text.split()) for row in rows.rows) == "".join(f"00:00:00 {words} [x]".split())
    assert rows.find(words.lower()[60:120]) == [0]


def test_errors_are_wrapped_unasked():
    """What comes after them at another level is not."""
    lines = [LogLine(0.0, "y" * 90, "INFO", "x.py"), LogLine(0.0, "Traceback (most recent call last):")]
    lines += [LogLine(0.0, f'  File "{"/path" * 20}", line 3'), LogLine(0.0, "z" * 90, "INFO", "x.py")]
    first, *errors, last = rows_of(lines, width=40).rows
    assert [cell_len(row.text) > 40 for row in (first, last)] == [True, True]
    assert all(cell_len(row.text) <= 40 for row in errors)
    assert len(errors) > 3


async def test_wrapping_and_folding_keep_reading_position(live):
    now = live[1]
    long = [LogLine(now, f"line {place} {'word ' * 40}", "INFO", "x.py") for place in range(600)]
    async with panel_on_run(live, *ROUTES, *long, *ANSWERED, size=(80, 24)) as (panel, pilot):
        pane = pane_of(panel)
        await pilot.press("l", "w")
        await shows(pilot, "▸ 3 answered requests; z opens", "server.log · following")
        await pilot.press("g", "pagedown", "pagedown")
        await wait_for(pilot, lambda: pane.scroll_offset.y == pane.scroll_target_y > 20)
        line = pane.rows.rows[pane.scroll_offset.y].line
        for key in ("w", "z", "w", "z"):
            await pilot.press(key)
            await wait_for(pilot, lambda: pane.rows.rows[pane.scroll_offset.y].line == line)
        await pilot.press("slash", *"route: /v2", "enter")
        await shows(pilot, "Route: /v2", "1 of 1")
        await pilot.press("escape", "G")
        await shows(pilot, "▸ 3 answered requests", "following")
