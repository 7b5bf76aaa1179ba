"""Any log, answer, patch, recording or record of a run: events, figures, a value or one error, and nothing else."""

import math
import os

import msgspec
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash_tui.common import paths
from dflash_tui.common.errors import RecipeError, UsageError
from dflash_tui.common.sanitizer import LINE_LIMIT
from dflash_tui.events import Event, LogLine, encode
from dflash_tui.planning import patch_file
from dflash_tui.planning.patch_file import Patch
from dflash_tui.run_state.state import RunState
from dflash_tui.vllm_output.log_reader import LogReader
from tests.fuzz import targets
from tests.fuzz.json_edits import EDITED
from tests.support import escapes, recordings, scrapes

# Not derandomized: every run may find something new, and what it found is printed. FUZZ_TIMES=100 looks longer.
fuzz = settings(
    database=None,
    max_examples=60 * int(os.environ.get("FUZZ_TIMES", "1")),
)
NAME = "cpu-vllm-0.32.0/dflash"
LINES = recordings.raw(NAME).splitlines()
METRICS = recordings.metrics("h200-vllm-0.26.0/g26-dflash-compile", "end").splitlines()
PATCHES = [path.read_text() for path in sorted(paths.bundled_folder("patches").glob("*.yaml"))]
odd_bytes = st.binary(max_size=30) | st.sampled_from([*escapes.raw().values(), b"\r", b"\0" * 9, b"x" * 5000])
odd_texts = st.sampled_from(list(escapes.texts().values()))
odd_numbers = st.sampled_from(["NaN", "+Inf", "-Inf", "-1", "1e999", "1e308", "", "0x1", "9" * 400, "1_0", "½", "1 2"])
odd_values = st.none() | st.integers() | st.floats() | st.text(max_size=9) | odd_texts


@st.composite
def logs(draw: st.DrawFn) -> bytes:
    """Lines of a real log: cut, mixed, repeated, with anything between."""
    line = st.sampled_from(LINES).flatmap(
        lambda whole: st.tuples(st.integers(0, len(whole)), odd_bytes).map(lambda cut: whole[: cut[0]] + cut[1])
    )
    return b"\n".join(draw(st.lists(line | odd_bytes | st.sampled_from(LINES), max_size=25)))


@fuzz
@given(logs(), st.lists(st.integers(0, 2000), max_size=6), st.floats(0, 4e9))
def test_log_events_do_not_depend_on_chunks(data, cuts, started):
    """The pieces in which it is read make no difference, no line is long or acts, and the state takes them all."""
    whole = LogReader(started, 0.0).feed(data + b"\n")
    reader, parts, last = LogReader(started, 0.0), list[Event](), 0
    for cut in [*sorted(cuts), len(data)]:
        parts += reader.feed(data[last:cut])
        last = max(last, cut)
    assert [*parts, *reader.feed(b"\n")] == whole
    state = RunState()
    for event in whole:
        state.apply(event)
        assert not escapes.acting(encode(event).decode())
        assert math.isfinite(event.at)
        assert not isinstance(event, LogLine) or len(event.text) <= LINE_LIMIT


@fuzz
@given(st.data())
def test_any_metrics_give_finite_counters_or_none(data):
    """Numbers that are none, labels of anything, half lines: a scrape of finite figures, or none."""
    lines = list(METRICS)
    for _ in range(data.draw(st.integers(1, 12))):
        place = data.draw(st.integers(0, len(lines) - 1))
        name = lines[place].rpartition(" ")[0]
        change = st.one_of(
            odd_numbers.map(f"{name} ".__add__),
            st.text(max_size=40),
            st.sampled_from([line[: len(line) // 2] for line in METRICS]),
            odd_texts.map('vllm:spec_decode_num_drafts_total{{position="{}"}} 1'.format),
        )
        lines[place] = data.draw(change)
    found = scrapes.parse_metrics("\n".join(lines))
    if found:
        for figure in msgspec.to_builtins(found.counters).values():
            figures = figure if isinstance(figure, list) else [figure]
            assert all(math.isfinite(each) and each >= 0 for each in figures if isinstance(each, int | float))


@fuzz
@given(st.data())
def test_any_patch_file_loads_or_gives_error(folders, data):
    """A value is replaced anywhere in a good patch; none ever names a file outside of vLLM."""
    tree = yaml.safe_load(data.draw(st.sampled_from(PATCHES)))
    for _ in range(data.draw(st.integers(1, 3))):
        there = tree
        while isinstance(there, dict | list) and there:
            key = data.draw(st.sampled_from(list(there) if isinstance(there, dict) else range(len(there))))
            if not isinstance(there[key], dict | list) or data.draw(st.booleans()):
                there[key] = data.draw(odd_values | st.sampled_from(["../x.py", "/etc/x.py", "a/../../x.py", "x.py\n"]))
                break
            there = there[key]
    paths.user_patches_folder().mkdir(parents=True, exist_ok=True)
    path = paths.user_patches_folder() / "mine.yaml"
    path.write_text(yaml.safe_dump(tree), encoding="utf-8")
    patch = loaded()
    for name in patch.paths if patch else ():
        assert not name.startswith("/")
        assert ".." not in name
        assert name.endswith(".py")


@pytest.mark.parametrize("target", ["recording", "archive", "run", "sse"])
@fuzz
@given(data=st.data())
def test_any_record_and_answer_pass_fuzz_target(target, data):
    """What a fuzzer by coverage begins with, changed: pieces of bytes, or values of its JSON."""
    if target != "archive" and data.draw(st.booleans()):
        targets.TARGETS[target](bytes([EDITED]) + data.draw(st.binary(min_size=4, max_size=16)))
        return
    changed = data.draw(st.sampled_from(list(targets.seeds(target))))
    for _ in range(data.draw(st.integers(1, 4))):
        begin, length = data.draw(st.integers(0, len(changed))), data.draw(st.integers(0, 40))
        changed = changed[:begin] + data.draw(odd_bytes) + changed[begin + length :]
    targets.TARGETS[target](changed)


def loaded() -> Patch | None:
    try:
        return patch_file.load_patch("mine")
    except (RecipeError, UsageError) as error:
        said = str(error)
    assert not escapes.acting(said)
    return None
