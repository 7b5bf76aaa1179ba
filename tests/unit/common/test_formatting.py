"""Names in too little room: what is cut still tells one from the other."""

import math

import pytest

from dflash_tui.common.formatting import UNKNOWN, fold_line, format_age, format_duration, shorten_names

FAMILY = [f"company-internal-llama-3.3-70b-{letter}-dflash-fp8-tensor-parallel-4" for letter in "abc"]


@pytest.mark.parametrize(
    ("names", "width", "shown"),
    [
        (["qwen", "gemma"], 8, ["qwen", "gemma"]),
        (["gemma-4-31b-it-dflash", "qwen"], 9, ["gemm…lash", "qwen"]),
        (["llama-8b-it", "llama-9b-it"], 9, ["lla…8b-it", "lla…9b-it"]),
        (["llama-3.3-70b-a-fp8-tensor", "llama-3.3-70b-b-fp8-tensor"], 8, ["…a-fp8-…", "…b-fp8-…"]),
        (["a-long-name", "another-long-name"], 0, ["", ""]),
        (["a-long-name"], 1, ["…"]),
    ],
)
def test_names_are_cut_where_they_still_differ(names, width, shown):
    assert list(shorten_names(names, width).values()) == shown


@pytest.mark.parametrize("width", [4, 14, 29, 49])
def test_long_similar_names_stay_distinct_when_cut(width):
    names = [*FAMILY, *(f"llama-3.3-70b-dflash-fp8-{number}" for number in range(14)), "demo-cpu"]
    shown = shorten_names(names, width)
    assert len(set(shown.values())) == len(names)
    assert all(len(text) <= width for text in shown.values())


@pytest.mark.parametrize("width", [31, 40])
def test_names_differing_twice_stay_distinct_when_cut(width):
    """No one cut tells them apart: what all begin with is left out."""
    sizes, formats = (8, 27, 70), ("fp8", "nvfp4")
    names = [
        f"company-internal-llama-3.3-{size}b-instruct-2511-dflash-{kind}-prod" for size in sizes for kind in formats
    ]
    shown = shorten_names(names, width)
    assert len(set(shown.values())) == len(names)
    assert all(len(text) <= width for text in shown.values())


@pytest.mark.parametrize(
    ("line", "width", "hang", "shown"),
    [
        ("a line of words", 0, 2, ["a line of words"]),
        ("a line of words", 15, 2, ["a line of words"]),
        ("a line of words", 10, 2, ["a line of", "  words"]),
        ("  → do-it --now-or-never later", 15, 4, ["  → do-it", "    --now-or-never", "    later"]),
        ("", 5, 2, [""]),
    ],
)
def test_a_line_is_folded_between_words(line, width, hang, shown):
    assert fold_line(line, width, hang).split("\n") == shown


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan])
def test_invalid_number_of_seconds_is_unknown(seconds):
    assert format_duration(seconds) == UNKNOWN
    assert format_age(seconds) == UNKNOWN
