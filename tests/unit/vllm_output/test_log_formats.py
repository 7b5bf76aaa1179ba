"""The start-up lines of releases, rendered from their own sources, through the log reader."""

import re
from functools import cache

import pytest
from packaging.version import Version

from dflash_tui.events import Compiled, Noted, Phase, PhaseStarted, Stated
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import wheels
from tests.support.log_formats import FORMATS, PATHS, TAG, Format, Meaning, render, strings

pytestmark = pytest.mark.index
SEEDS = ("0.20.2", "0.24.0")
# Lines that bring a reader to a phase, as they are in the recordings.
WAY = {
    Phase.RESOLVE: "non-default args: {}",
    Phase.ENGINE: "Initializing a V1 LLM engine (v0.33.0) with config: x",
    Phase.WEIGHTS: "Starting to load model m...",
    Phase.COMPILE: "Starting torch.compile",
    Phase.PROFILE: "Profiling CUDA graph memory: x",
    Phase.KV_CACHE: "Available KV cache memory: 1.0 GiB",
    Phase.GRAPHS: "Rank 0: Torch profiler disabled for CUDA graph capture",
    Phase.JIT: "Free memory on device (1/2 GiB) on startup.",
}


@pytest.fixture(scope="module")
def sources() -> dict[str, dict[str, set[str]]]:
    """The strings that may be a format, of the sources that log, of what seeds run on and the last four releases."""
    with wheels.skip_if_unreachable():
        releases = [("vllm", version) for version in (*SEEDS, *[*wheels.published("vllm")][-4:])]
        read = wheels.read_all(dict.fromkeys(releases, PATHS))
    begin = re.compile("|".join(form.begins for form in FORMATS))
    found = cache(lambda source: {text.strip() for text in strings(source) if begin.match(text.strip())})
    return {
        version: {path: found(source) for path, source in texts.items() if source}
        for (_, version), texts in read.items()
    }


def meanings(line: str, after: Phase) -> list[Meaning]:
    """Return what the reader takes from `line` when the phase before it is `after`."""
    reader = LogReader(0.0, 0.0)
    if after in WAY:
        reader.feed_line(f"INFO 11-21 01:00:00 [x.py:1] {WAY[after]}")
    found: list[Meaning] = []
    for event in reader.feed_line(f"(EngineCore pid=7) INFO 11-21 01:00:01 [x.py:1] {line}"):
        match event:
            case PhaseStarted():
                found.append(event.phase)
            case Noted():
                found.append((event.name, event.text))
            case Stated():
                found.append((event.name, event.value))
            case Compiled():
                found.append((event.part, event.step, event.seconds))
            case _:
                pass
    return found


def test_log_line_means_same_in_every_release(sources):
    """Each format is in the sources of each of its releases, and its lines are read as what they say."""
    assert [(form.begins, version) for form in FORMATS for version in find_lacking(sources, form)] == []


def find_lacking(sources: dict[str, dict[str, set[str]]], form: Format) -> list[str]:
    """Return the releases whose sources lack a format; where they have it, its lines mean what they should."""
    lacking = []
    for version, texts in sources.items():
        if not Version(form.since) <= Version(version) <= Version(form.until):
            continue
        here = set().union(*(texts.get(path, set()) for path in form.paths))
        formats = sorted(text for text in here if re.match(form.begins, text))
        if not formats:
            lacking.append(version)
        for text in formats:
            line = render(text, form.words)
            if "CUDA graphs (" in line:
                line += ":   0%|          | 0/32 [00:00<?, ?it/s]"
            wanted = form.means
            if isinstance(wanted, tuple) and len(wanted) == 3 and line.startswith(TAG):
                wanted = (TAG.strip("[] "), *wanted[1:])
            assert wanted in meanings(line, form.after), (version, line)
    return lacking
