"""The phases and facts of recorded starts, compared with what a person wrote down from the raw logs."""

from collections import defaultdict

import pytest
import yaml

from dflash_tui.events import AnyEvent, Compiled, Noted, PhaseStarted, Progressed, Stated
from dflash_tui.vllm_output.log_reader import LogReader
from tests.support import recordings

EXPECTED = yaml.safe_load((recordings.FOLDER.parent / "startup.yaml").read_text(encoding="utf-8"))


def replay(name: str) -> list[AnyEvent]:
    reader = LogReader(0.0, 0.0)
    return [event for at, line in recordings.lines(name) for event in reader.feed_line(line, at)]


def written(name: str) -> list[tuple[str, float]]:
    pairs = (pair.rpartition(" ") for pair in EXPECTED[name]["phases"].split(", "))
    return [(phase.strip(), float(at)) for phase, _, at in pairs]


def with_part(key: str) -> list[str]:
    return [name for name, parts in EXPECTED.items() if key in parts]


def test_every_recording_is_written_down():
    """No recording is left out, and none is written down that is not there."""
    assert sorted(EXPECTED) == recordings.names()


@pytest.mark.parametrize("name", recordings.names())
def test_phases_begin_where_a_person_sees_them(name):
    """Each phase of each recording begins at the line that was written down for it, also when it comes again."""
    found = [(event.phase.value, event.at) for event in replay(name) if isinstance(event, PhaseStarted)]
    assert found == written(name)


@pytest.mark.parametrize("name", with_part("figures"))
def test_all_figures_that_the_log_states_and_no_others(name):
    """The figures come out with their values; the first one counts, as it does on the screens."""
    found: dict[str, float] = {}
    for event in replay(name):
        if isinstance(event, Stated):
            found.setdefault(event.name, event.value)
    assert found == EXPECTED[name]["figures"]


@pytest.mark.parametrize("name", with_part("facts"))
def test_what_the_server_says_that_it_uses(name):
    """Attention of target and drafter, model runner, MoE kernels and the rest, in the server's own words."""
    found: dict[str, list[str]] = defaultdict(list)
    for event in replay(name):
        if isinstance(event, Noted) and event.text not in found[event.name]:
            found[event.name].append(event.text)
    assert {name: ", ".join(texts) for name, texts in found.items()} == EXPECTED[name]["facts"]


@pytest.mark.parametrize("name", list(EXPECTED))
def test_the_steps_of_compiling_per_part(name):
    """Dynamo, Inductor, the cache and the total are told apart for target and drafter."""
    found: dict[str, dict[str, float | None]] = defaultdict(dict)
    for event in replay(name):
        if isinstance(event, Compiled):
            found[event.part][event.step] = event.seconds
    assert dict(found) == EXPECTED[name].get("compiled", {})


@pytest.mark.parametrize("name", with_part("bars"))
def test_bars_end_full(name):
    """The last state of each phase's bar is complete; shards of target and drafter are not mixed."""
    found = {}
    for event in replay(name):
        if isinstance(event, Progressed):
            found[event.phase.value] = [event.done, event.total]
    assert found == EXPECTED[name]["bars"]
