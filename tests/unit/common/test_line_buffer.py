"""Lines of a stream in pieces: the same however it is cut, and never more in memory than the limit."""

from hypothesis import given
from hypothesis import strategies as st

from dflash_tui.common.untrusted_json import LineBuffer

PIECES = st.lists(st.binary(max_size=12).map(lambda data: data.replace(b"x", b"\n").replace(b"\x00", b"\n")))
LIMITS = st.integers(1, 9)


@given(PIECES, LIMITS)
def test_lines_above_the_limit_are_dropped_whole(pieces, limit):
    buffer = LineBuffer(limit)
    lines = [line for piece in pieces for line in buffer.feed(piece)]
    *whole, rest = b"".join(pieces).split(b"\n")
    assert lines == [line for line in whole if len(line) <= limit]
    assert buffer.unfinished_line == (rest if len(rest) <= limit else b"")
    assert buffer.dropped == sum(len(line) > limit for line in (*whole, rest))


@given(PIECES, LIMITS)
def test_overlong_line_keeps_its_end(pieces, limit):
    buffer = LineBuffer(limit, keep_end=True)
    lines = [line for piece in pieces for line in buffer.feed(piece)]
    *whole, rest = b"".join(pieces).split(b"\n")
    assert lines == [line[-limit:] for line in whole]
    assert buffer.unfinished_line == rest[-limit:]
    assert buffer.dropped == 0


@given(PIECES, LIMITS, st.booleans())
def test_no_more_than_the_limit_is_held(pieces, limit, keep_end):
    buffer = LineBuffer(limit, keep_end=keep_end)
    for piece in pieces:
        buffer.feed(piece)
        assert len(buffer.unfinished_line) <= limit
