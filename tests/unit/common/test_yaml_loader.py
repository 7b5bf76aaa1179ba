"""YAML that is read: which values plain words mean, and that any other text is one error with its line."""

import os

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dflash_tui.common import yaml_loader
from dflash_tui.common.errors import RecipeError
from dflash_tui.common.yaml_loader import YamlError, parse_yaml_value

TAGS = [
    "!!bool foo",
    "!!timestamp foo",
    '!!int ""',
    '!!float ""',
    "!!float 1:1.0",
    "!!null x",
    "!x y",
    "! 1",
    "!!str 1",
]


class AnyFile(msgspec.Struct, frozen=True):
    """A file with one key that takes anything."""

    x: object = None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((word, True) for word in ("true", "On")),
        *((word, False) for word in ("false", "NO")),
        *((word, None) for word in ("null", "~", "# nothing")),
        ("-7", -7), ("1_000", 1000), ("0", 0),
        (".5", 0.5), ("1.5e+3", 1500.0),
        *((word, word) for word in ("0x1F", "010", "1:30", "1e3", "2026-06-05", "tRue")),
        ('"true"', "true"), ("'1'", "1"), ("|\n  1\n", "1\n"),
        ("{1: a, on: b, null: c}", {"1": "a", "on": "b", "null": "c"}),
        ("[1, [two]]", [1, ["two"]]),
    ],
)  # fmt: skip
def test_typed_words_become_values(text, value):
    """Numbers are decimal, keys are text, dates and other spellings of numbers stay what they are."""
    parsed = parse_yaml_value(text)
    assert (parsed, type(parsed)) == (value, type(value))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        *((tag, "tags") for tag in TAGS),
        ("*a", "aliases"),
        ("[" * 100, "nested too deeply"),
        ('"\\uD800"', "not YAML"),
        ("1" + "0" * 30, "x: expected a number of at most 64 bits"),
        ("9" * 400 + ".0", "x: expected a finite number"),
        ("[1, .nan]", r"x\[1\]: expected a finite number"),
        ("{a: 1, a: 2}", r"x\.a: given twice"),
        ("{[a]: 1}", "x: expected a word as a key"),
    ],
)
def test_other_values_give_error_with_line(tmp_path, text, what):
    """From a file it is `file:line: key: …`."""
    path = tmp_path / "file.yaml"
    path.write_text(f"# one line before\nx: {text}\n")
    with pytest.raises(RecipeError, match=rf"file\.yaml:2: {what}"):
        yaml_loader.load_yaml(path, AnyFile)


pieces = st.sampled_from(
    [*TAGS, "&a ", "*a", "1:1:1", ".5", "0x_", "<<: ", "%YAML 9.9\n", "---\n", "...", "\\u", '"\\x', "\n  "]
)


@settings(database=None, max_examples=300 * int(os.environ.get("FUZZ_TIMES", "1")))
@given(
    st.lists(pieces | st.text(max_size=5) | st.text(alphabet="-?:,[]{}#&*!|>'\"%@` \n\t1_.", max_size=8)).map("".join)
)
@example("\udcff")
@example("%YAML " + "9" * 5000 + ".1\n---\nx")
def test_any_text_parses_or_gives_one_error(text):
    """A value can be written as JSON, and an error on a terminal."""
    try:
        value = parse_yaml_value(text)
    except YamlError as error:
        value = str(error)
    assert msgspec.json.encode(value)
