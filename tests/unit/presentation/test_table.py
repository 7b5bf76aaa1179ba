"""Tables on a terminal."""

from collections.abc import Sequence

import pytest

from dflash_tui.presentation.report import Section, Table, to_terminal

HEADER = ("NAME", "N", "FOR", "TITLE")
ROW = ("a", "7", "h100, h200, gb10, rtx-5090", "what it is called")


def render_list(rows: Sequence[tuple[str, ...]], width: int, drop: tuple[str, ...] = ()) -> str:
    return to_terminal([Section("", (Table(HEADER, tuple(rows), (1,), keys=0, drop=drop),))], width)


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (0, ["NAME  N  FOR                         TITLE", "a     7  h100, h200, gb10, rtx-5090  what it is called"]),
        (80, ["NAME  N  FOR                         TITLE", "a     7  h100, h200, gb10, rtx-5090  what it is called"]),
        (40, ["NAME  N  FOR", "a     7  h100, h200, gb10, rtx-5090"]),
        (30, ["NAME  N  FOR", "a     7  h100, h200, gb10,", "         rtx-5090"]),
        (20, ["NAME  N", "    FOR", "a     7", "    h100, h200,", "    gb10, rtx-5090"]),
    ],
)
def test_a_table_fits_the_terminal(width, shown):
    """A column is dropped, then the last one is folded beside its row or below it; a file gets all of it."""
    assert render_list([ROW], width, drop=("TITLE",)).splitlines() == shown


@pytest.mark.parametrize("width", [12, 30, 48, 87])
def test_no_cell_of_a_table_is_cut(width):
    """What has no column left stands below its row; a word wider than the terminal stays whole."""
    rows = [ROW, ("name", "12", "", ""), ("b", "1", "/a/path/that/is/wider/than/many/a/terminal/of/a/phone", "it")]
    shown = render_list(rows, width)
    assert sorted(shown.split()) == sorted(" ".join(" ".join(row) for row in (HEADER, *rows)).split())
    assert all(len(line) <= width or len(line.split()) == 1 for line in shown.splitlines())


def test_last_column_of_report_is_folded():
    table = Table(("boot", "remark"), (("1", "the server failed on its first request"), ("2", "")))
    shown = to_terminal([Section("", (table,))], 28)
    assert shown.splitlines() == ["BOOT  REMARK", "1     the server failed on", "      its first request", "2"]
