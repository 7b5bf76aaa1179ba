"""The phases and facts of recorded starts, compared with what a person wrote down from the raw logs."""

from collections import defaultdict

import pytest
import yaml

from dflash_tui.events import (
    AnyEvent,
    Compiled,
    EngineInitialized,
    Noted,
    PhaseStarted,
    Progressed,
    SpeculationLogged,
    Stated,
)
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import recordings
from tests.support.states import read_lines

EXPECTED = yaml.safe_load((recordings.FOLDER.parent / "startup.yaml").read_text(encoding="utf-8"))


def replay(name: str) -> list[AnyEvent]:
    return read_lines(recordings.lines(name))


def written(name: str) -> list[tuple[str, float]]:
    pairs = (pair.rpartition(" ") for pair in EXPECTED[name]["phases"].split(", "))
    return [(phase.strip(), float(at)) for phase, _, at in pairs]


def test_every_recording_is_written_down():
    """No recording is left out, and none is written down that is not there."""
    assert sorted(EXPECTED) == recordings.names()


@pytest.mark.parametrize("name", recordings.names())
def test_recorded_start_gives_its_expected_events(name):
    """Phases, also when one comes again; figures and bars as on the screens; facts in the server's words; compiling."""
    figures: dict[str, float] = {}
    facts: dict[str, list[str]] = defaultdict(list)
    compiled: dict[str, dict[str, float | None]] = defaultdict(dict)
    bars, events = {}, replay(name)
    for event in events:
        match event:
            case Stated():
                figures.setdefault(event.name, event.value)
            case Noted() if event.text not in facts[event.name]:
                facts[event.name].append(event.text)
            case Compiled():
                compiled[event.part][event.step] = event.seconds
            case Progressed():
                bars[event.phase.value] = [event.done, event.total]
    expected = EXPECTED[name]
    assert [(event.phase.value, event.at) for event in events if isinstance(event, PhaseStarted)] == written(name)
    assert compiled == expected.get("compiled", {})
    told = {"figures": figures, "facts": {name: ", ".join(texts) for name, texts in facts.items()}, "bars": bars}
    for key in told.keys() & expected.keys():
        assert told[key] == expected[key], key


def log(*texts: str) -> list[AnyEvent]:
    """Return the events of a log whose lines come second by second."""
    lines = (f"(EngineCore pid=7) INFO 01-01 00:00:{at:02} [x.py:1] {text}\n" for at, text in enumerate(texts))
    return LogReader(0.0, 0.0).feed("".join(lines).encode())


EAGER = "Initializing a V1 LLM engine (v{}) with config: model='m', enforce_eager=True, x"
BEGIN, WARM, WARMED = ("Starting to load model m...", "Warming up model for the compilation...", "Warming up done.")
CACHE = "Auto set (4.0/18.96) GiB for KV cache on node 0, with x"
INITIALIZED = "init engine (profile, create kv cache, warmup model) took {}"


@pytest.mark.parametrize("release", ["0.21.0", "0.32.0"])
def test_an_eager_start_compiles_nothing(release):
    """On a CPU vLLM speaks of compiling before the pass that only measures memory; it is a pass of profiling."""
    events = log(EAGER.format(release), BEGIN, WARM, WARMED, CACHE, INITIALIZED.format("9.00 s"))
    found = [(event.phase.value, event.at) for event in events if isinstance(event, PhaseStarted)]
    assert found[1:] == [
        ("engine", 0.0), ("weights", 1.0), ("profile", 2.0), ("unattributed", 3.0), ("kv cache", 4.0), ("api", 5.0),
    ]  # fmt: skip
    compiled = log(EAGER.format(release).replace("True", "False"), BEGIN, WARM, WARMED, CACHE)
    assert "compile" in [event.phase.value for event in compiled if isinstance(event, PhaseStarted)]


@pytest.mark.parametrize("warm", [WARM, "Warming up FlashInfer attention."])
def test_warm_up_is_separate_from_kv_cache(warm):
    """What is warmed up once there is a cache is told from making it."""
    events = log(EAGER.format("0.27.1"), BEGIN, CACHE, warm, INITIALIZED.format("9.00 s"))
    assert [event.phase.value for event in events if isinstance(event, PhaseStarted)][-3:] == ["kv cache", "jit", "api"]


@pytest.mark.parametrize(
    ("words", "seconds", "compilation"),
    [("42.11 s", 42.11, None), ("42.11 s (compilation: 10.02 s — language_model: 9.00 s)", 42.11, 10.02)],
)
def test_initialization_time_is_kept(words, seconds, compilation):
    """In the words of each release."""
    [event] = [event for event in log(INITIALIZED.format(words)) if isinstance(event, EngineInitialized)]
    assert (event.seconds, event.compilation) == (seconds, compilation)


def test_log_states_speculation_figures_without_metrics():
    """The line of vLLM 0.20 to 0.33; without drafts it says nan."""
    line = (
        "SpecDecoding metrics: Mean acceptance length: {}, Accepted throughput: 10.80 tokens/s, Drafted throughput: "
        "37.40 tokens/s, Accepted: {} tokens, Drafted: {} tokens, Per-position acceptance rate: {}, Avg Draft "
        "acceptance rate: {}%"
    )
    up, some = "Application startup complete.", line.format("3.31", 108, 374, "0.80, 0.51, nan", "28.9")
    events = log(up, some, line.format("nan", 0, 0, "", "nan"), "SpecDecoding metrics: of another form")
    found = [event for event in events if isinstance(event, SpeculationLogged)]
    assert found == [SpeculationLogged(1.0, 3.31, 108, 374, (0.8, 0.51)), SpeculationLogged(2.0, None, 0, 0)]


def test_invalid_number_is_no_figure():
    """A server may write anything where a figure stands."""
    events = log("Model loading took 1.2.3 GiB and 1 seconds", "Application startup complete.")
    assert any("1.2" in getattr(event, "text", "") for event in events)


@pytest.mark.timeout(60)
def test_line_of_block_characters_is_read_quickly():
    """The banner of vLLM has some before its version; two thousand of them took 60 ms a line."""
    events = LogReader(0.0, 0.0).feed(f"{'█' * 1990}\n".encode() * 3000)
    assert len(events) == 3001
