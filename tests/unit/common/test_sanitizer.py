"""Nothing that comes from outside acts on a terminal, and what cannot be changed is seen."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_tui.common import untrusted_json
from dflash_tui.common.sanitizer import clean_line, clean_lines, escape_control_characters
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import escapes

TEXTS = escapes.texts()


def test_the_terminal_of_these_tests_notices():
    """Written as they are, the texts do harm here, too: else nothing below could fail."""
    harmful = {name for name, text in TEXTS.items() if escapes.shown(f"one\n{text}\ntwo")[1]}
    assert {"title", "home", "up", "save", "c1_csi", "reset", "bell", "answerback", "backspace"} <= harmful


@pytest.mark.parametrize("clean", [clean_line, clean_lines, escape_control_characters])
def test_a_text_stays_in_its_line(clean):
    """It changes its own line and nothing else; nothing is rung, named or answered."""
    for text in map(clean, TEXTS.values()):
        assert not escapes.acting(text)
        rows, asked = escapes.shown(f"one\n[{text}]\ntwo")
        assert not asked
        assert (rows[0], rows[2]) == ("one", "two")
        assert rows[1].startswith("[")
        assert not any(rows[3:])


@pytest.mark.parametrize("name", escapes.raw())
def test_invalid_utf8_log_bytes_make_no_escape(name):
    """Overlong forms, lone continuation bytes and surrogates make no control character."""
    told = LogReader(0.0, 0.0).feed(b"a " + escapes.raw()[name] + b" b\n")
    assert not escapes.acting("".join(getattr(event, "text", "") for event in told))


@settings(max_examples=300, database=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_escaped_json_decodes_to_same_value(text):
    """What is escaped for the terminal is what JSON means by it; a text is not changed twice."""
    written = escape_control_characters(msgspec.json.encode([text]).decode())
    assert not escapes.acting(written)
    assert json.loads(written) == [text]
    assert clean_line(clean_line(text)) == clean_line(text)
    assert not escapes.acting(clean_line(text))


@pytest.mark.parametrize("data", [b"\xff", b'"\xff"', b"[" * 100_000, b"{", b"", b'{"a": "\\ud800"}'])
def test_invalid_json_raises_one_error_type(data):
    """Whatever is wrong with a file, its reader has one thing to catch."""
    with pytest.raises(msgspec.MsgspecError):
        untrusted_json.decode_json(data, msgspec.json.Decoder(dict[str, int]))
