"""The rows of the known failures: each explains its own lines, and no other row does."""

import re
import textwrap
from pathlib import Path

import pytest

from dflash_tui.common.errors import RecipeError
from dflash_tui.events import Phase, Problem
from dflash_tui.machine.hardware import Hardware
from dflash_tui.vllm_output import known_failures
from dflash_tui.vllm_output.failure_signs import Sign, list_plain_texts
from dflash_tui.vllm_output.known_failures import (
    Circumstances,
    KnownFailure,
    Role,
    explain_failure,
    find_root_cause,
    find_signs,
    list_symptoms,
    load_known_failures,
    recognize_failure,
)
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support.pattern_alternatives import find_covered

ROWS = load_known_failures()
SIGNS = [(row, sign) for row in ROWS for sign in row.signs]
ORDER = list(Role)


def named(pair: object) -> str:
    return f"{pair.kind}" if isinstance(pair, KnownFailure) else pair.sign[:40] if isinstance(pair, Sign) else str(pair)


def split(sign: Sign) -> tuple[str, tuple[str, ...]]:
    """Return the message of a sign's line, and the lines of a traceback above it."""
    *frames, message = sign.line.split("\n") if sign.frame else [sign.line]
    return message, tuple(frames)


@pytest.mark.parametrize(("row", "sign"), SIGNS, ids=named)
def test_a_row_explains_its_own_lines_and_no_other_row_does(row, sign):
    """No other row of its role or of one that is tried before fits the line, so the order in the file says nothing."""
    fitting = [found for found, _ in find_signs(*split(sign))]
    assert fitting[0] is row
    assert [other for other in fitting[1:] if ORDER.index(other.role) <= ORDER.index(row.role)] == []


@pytest.mark.parametrize(("row", "sign"), SIGNS, ids=named)
def test_without_its_sign_a_line_is_not_explained_like_this(row, sign, monkeypatch):
    """Every sign is needed: taken out of the table, its line gets another row or none."""
    left = tuple(other for other in row.signs if other is not sign)
    rows = tuple(KnownFailure(row.kind, left, row.cause, row.fix, row.role) if each is row else each for each in ROWS)
    monkeypatch.setattr(known_failures, "load_known_failures", lambda: rows)
    explained = next((found for found, _ in find_signs(*split(sign))), None)
    assert explained is None or (explained.cause, explained.fix, explained.role) != (row.cause, row.fix, row.role)


@pytest.mark.parametrize(("row", "sign"), SIGNS, ids=named)
def test_every_alternative_of_a_sign_is_needed(row, sign):
    """Put into the sign's line, each alternative makes a message that the sign without it does not fit."""
    assert find_covered(sign.sign, [split(sign)[0]]) == []


@pytest.mark.parametrize(
    ("pattern", "message", "covered"),
    [
        (r"(?:GPUs|\w+s) free", "GPUs free", ["GPUs"]),
        (r"Error 9\d|Error 98", "Error 98", ["Error 98"]),
        (r"old (?:gcc|g\+\+|clang-\d+)(?: here| there)?$", "old gcc here", []),
        (r"(?P<n>\d|none) (?!left|right)", "none over", []),
        (r"never (?:in|at) here", "elsewhere", ["in", "at"]),
    ],
)
def test_a_covered_alternative_is_found(pattern, message, covered):
    """Also one deep within, and one that its line does not reach."""
    assert find_covered(pattern, [message]) == covered


@pytest.mark.parametrize(("row", "sign"), SIGNS, ids=named)
def test_the_first_three_lines_say_what_to_do(row, sign):
    """On a narrow terminal the cause takes two lines at most."""
    if row.role is not Role.SYMPTOM:
        match = explain_failure(*split(sign), Circumstances("0.26.0", *bound(row), has_recipe=False))
        assert match is not None
        assert len(textwrap.wrap(match.cause, 78)) <= 2


@pytest.mark.parametrize(("row", "sign"), SIGNS, ids=named)
def test_every_alternative_of_a_sign_contains_what_is_looked_for_first(row, sign):
    """What a sign demands as plain text is in its line, or the line would never be compared with the pattern."""
    assert any(text in split(sign)[0] for text in list_plain_texts(sign.sign))
    for pattern in (sign.sign, sign.frame):
        re.compile(pattern)


@pytest.mark.parametrize(("row", "sign"), SIGNS, ids=named)
def test_the_log_reader_takes_it_for_a_problem_of_that_kind(row, sign):
    """With vLLM's prefix of an error and without; what a line of another level says is never a cause."""
    message, frames = split(sign)
    for prefix in ("", "(EngineCore pid=123) ERROR 11-22 10:00:00 [core.py:1] "):
        assert [event.kind for event in problems(prefix, message, frames)] == [row.kind]
    assert problems("INFO 11-22 10:00:00 [core.py:1] ", message, frames) == []


def problems(prefix: str, message: str, frames: tuple[str, ...]) -> list[Problem]:
    lines = [f"{prefix}  {frame}" for frame in frames] + [prefix + message, ""]
    return [event for event in LogReader(0.0, 0.0).feed("\n".join(lines).encode()) if isinstance(event, Problem)]


@pytest.mark.parametrize("line", ["", "all is well", "ValueError: something that nobody has seen"])
def test_another_line_shows_none(line):
    assert (explain_failure(line), recognize_failure(line)) == (None, "")


def test_a_kind_is_a_symptom_or_none():
    """What is dropped as a symptom is dropped by its kind."""
    assert list_symptoms().isdisjoint(row.kind for row in ROWS if row.role is not Role.SYMPTOM)


@pytest.mark.parametrize(("row", "sign"), SIGNS, ids=named)
def test_cause_and_fix_fill_in(row, sign):
    """No braces, doubled spaces or dangling colons are left, whichever of the row's signs was found."""
    if row.role is not Role.SYMPTOM:
        match = explain_failure(*split(sign), Circumstances("0.26.0", *bound(row)))
        assert match is not None
        for words in (match.cause, match.fix):
            assert words
            assert not re.search(r"[{}]|  |\( ?\)|[:,] ?$", words), words


def bound(row: KnownFailure) -> tuple[Hardware | None, Phase | None]:
    return (next(iter(row.hardware), None), next(iter(row.phases), None))


def test_the_numbers_of_a_message_are_in_cause_and_fix():
    """As vLLM prints them."""
    match = explain_failure(
        "ValueError: To serve at least one request with the model's max seq len (1048576), 22.5 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (17.39 GiB). Based on the available memory, "
        "the estimated maximum model length is 810208."
    )
    assert match is not None
    assert [number in match.cause for number in ("1048576", "22.5", "17.39")] == [True] * 3
    assert "810208" in match.fix


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        ("out of memory", ("out of memory",)),
        (r"^a\.bcd?e+f", ("a.bc",)),
        (r"(?:gcc|clang).*not found", (" not found"[1:],)),
        (r"(?:one|other) x", ("one", "other")),
        (r"abc|\d\d", ("abc", "")),
        (r"x{3}[abc]+(?P<n>\d+)", ("",)),
        (r"(?!never)after", ("after",)),
        (r"nvcc +: Unsupported", (": Unsupported",)),
    ],
)
def test_the_plain_text_of_a_pattern(pattern, texts):
    """Only what every fitting text contains is looked for; nothing else may be demanded."""
    assert list_plain_texts(pattern) == texts


@pytest.mark.parametrize(
    ("row", "where"),
    [
        ("{kind: x, signs: [{sign: '\\d+', line: '1'}], cause: a, fix: b}", "signs[0]"),
        ("{kind: x, signs: [{sign: abc, line: abc}]}", "failures[0]"),
        ("{kind: x, signs: [{sign: abc, line: abc}], cause: a, fix: b, role: symptom}", "failures[0]"),
        ("{kind: x, signs: [{sign: abc, line: abc}], cause: a, fix: b, releases: newer}", "failures[0]"),
        ("{kind: x, signs: [{sign: abc, line: abc}], cause: a, fix: b, hardware: [gb11]}", "hardware[0]"),
    ],
)
def test_a_row_that_says_too_little_is_refused(row, where, tmp_path, monkeypatch):
    """The error names the line and the key."""
    file = Path(tmp_path / "known_failures.yaml")
    file.write_text(f"failures:\n  - {row}\n")
    monkeypatch.setattr(known_failures, "_FILE", file)
    with pytest.raises(RecipeError) as error:
        load_known_failures.__wrapped__()
    assert f"{file}:2" in error.value.what
    assert where in error.value.what


def test_a_bound_row_is_used_only_where_it_is_known_to_fit():
    """Release, hardware and phase have to be known and to fit."""
    here = Circumstances("0.25.0", Hardware.GB10, Phase.GRAPHS)
    assert here.fits(">=0.24,<0.26", (Hardware.GB10,), (Phase.GRAPHS,))
    for releases, hardware, phases in ((">=0.26", (), ()), ("", (Hardware.H100,), ()), ("", (), (Phase.UP,))):
        assert not here.fits(releases, hardware, phases)
    assert not Circumstances("nightly").is_in(">=0.20")
    assert not Circumstances(f"1.{'9' * 5000}").is_in(">=0.20")
    assert not Circumstances().fits(">=0.20", (), ())


@pytest.mark.parametrize(
    ("texts", "cause"),
    [
        (["ValueError: nobody knows", "torch.OutOfMemoryError: CUDA out of memory."], 1),
        (["TimeoutError", "TimeoutError: RPC call to execute_model timed out."], 1),
        (["ValueError: nobody knows", "Worker proc VllmWorker-1 died unexpectedly, shutting down executor."], 0),
        (["Worker proc VllmWorker-1 died unexpectedly, shutting down executor.", "ValueError: nobody knows"], 0),
        (["AssertionError", "vllm.v1.engine.exceptions.EngineDeadError: see above"], 0),
    ],
)
def test_a_cause_comes_before_what_follows_from_it(texts, cause):
    """A known cause first, an error without a message last."""
    told = [Problem(float(place), text, recognize_failure(text)) for place, text in enumerate(texts)]
    assert find_root_cause(told) is told[cause]
