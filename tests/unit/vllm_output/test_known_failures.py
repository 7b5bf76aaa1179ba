"""The rows of the known failures: each explains its own lines, and no other row does."""

import re
import textwrap
from pathlib import Path

import pytest

from dflash_tui.common.errors import RecipeError
from dflash_tui.events import Phase, Problem
from dflash_tui.machine.hardware import Hardware
from dflash_tui.vllm_output import known_failures
from dflash_tui.vllm_output.known_failures import (
    Circumstances,
    Role,
    Sign,
    explain_failure,
    find_root_cause,
    list_plain_texts,
    load_known_failures,
    recognize_failure,
)
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support.values import present

ROWS = load_known_failures()
SIGNS = [(row, sign) for row in ROWS for sign in row.signs]
ORDER = list(Role)
UNFILLED = re.compile(r"[{}]|  |\( ?\)|[:,] ?$")


def split(sign: Sign) -> tuple[str, tuple[str, ...]]:
    """Return the message of a sign's line, and the lines of a traceback above it."""
    *frames, message = sign.line.split("\n") if sign.frame else [sign.line]
    return message, tuple(frames)


def test_the_log_reader_recognizes_each_sign():
    """With vLLM's prefix of an error and without; what a line of another level says is never a cause."""
    wrong = []
    for row, sign in SIGNS:
        message, frames = split(sign)
        prefixes = ("", "(EngineCore pid=123) ERROR 11-22 10:00:00 [core.py:1] ")
        kinds = [[event.kind for event in problems(prefix, message, frames)] for prefix in prefixes]
        information = problems("INFO 11-22 10:00:00 [core.py:1] ", message, frames)
        if kinds != [[row.kind]] * 2 or information:
            wrong.append((row.kind, sign.sign, kinds, information))
    assert wrong == []


def test_a_line_shows_its_own_sign_only():
    """No other sign of a role that is tried before or beside its own fits, so the order in the file says nothing."""
    wrong = []
    for row, sign in SIGNS:
        tried = [(other, its) for other, its in SIGNS if ORDER.index(other.role) <= ORDER.index(row.role)]
        fitting = [(other.kind, its.sign) for other, its in tried if its.search(*split(sign))]
        if fitting != [(row.kind, sign.sign)]:
            wrong.append((row.kind, sign.sign, fitting))
    assert wrong == []


def test_cause_and_fix_are_short_and_filled():
    """No braces, doubled spaces or dangling colons are left; on a narrow terminal the cause takes two lines at most."""
    wrong = []
    for row, sign in ((row, sign) for row, sign in SIGNS if row.role is not Role.SYMPTOM):
        here = Circumstances("0.26.0", next(iter(row.hardware), None), next(iter(row.phases), None))
        match = explain_failure(*split(sign), here)
        assert match is not None, sign.sign
        without_recipe = present(explain_failure(*split(sign), here._replace(has_recipe=False)))
        lines = textwrap.wrap(without_recipe.cause, 78)
        if len(lines) > 2 or not all(words and not UNFILLED.search(words) for words in (match.cause, match.fix)):
            wrong.append((row.kind, sign.sign, match.cause, match.fix))
    assert wrong == []


def problems(prefix: str, message: str, frames: tuple[str, ...]) -> list[Problem]:
    lines = [f"{prefix}  {frame}" for frame in frames] + [prefix + message, ""]
    return [event for event in LogReader(0.0, 0.0).feed("\n".join(lines).encode()) if isinstance(event, Problem)]


@pytest.mark.parametrize(
    ("pattern", "texts"),
    [
        (r"^a\.bcd?e+f", ("a.bc",)),
        (r"(?:one|other) x", ("one", "other")),
        (r"abc|\d\d", ("abc", "")),
        (r"(?!never)after", ("after",)),
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
        ("{kind: x, signs: [{sign: abc, line: abc}], cause: a, fix: b, hardware: [gb11]}", "hardware[0]"),
    ],
)
def test_incomplete_failure_row_is_refused(row, where, tmp_path, monkeypatch):
    """The error names the line and the key."""
    file = Path(tmp_path / "known_failures.yaml")
    file.write_text(f"failures:\n  - {row}\n")
    monkeypatch.setattr(known_failures, "_FILE", file)
    with pytest.raises(RecipeError) as error:
        load_known_failures.__wrapped__()
    assert f"{file}:2" in error.value.what
    assert where in error.value.what


def test_bound_failure_row_needs_matching_circumstances():
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
def test_root_cause_precedes_its_consequences(texts, cause):
    """A known cause first, an error without a message last."""
    told = [Problem(float(place), text, recognize_failure(text)) for place, text in enumerate(texts)]
    assert find_root_cause(told) is told[cause]
