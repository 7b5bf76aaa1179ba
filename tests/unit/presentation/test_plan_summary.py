"""The rows of `plan` that a reader decides by."""

import pytest

from dflash_tui.planning.plan import format_command
from dflash_tui.presentation.plan_text import summarize_plan
from tests.support import command_line


def rows(*words: str) -> list[tuple[str, str]]:
    """Return the labels and values of a summary."""
    lines = summarize_plan(command_line.planned(*words)).splitlines()
    return [(line[:8].strip(), line[9:]) for line in lines]


def test_a_plan_answers_six_questions_first():
    """Does it fit, what is fetched, how fast, when ready, which context and port; then the set-up and warnings."""
    labels = [label for label, _ in rows("gemma-4-31b", "--gpu", "gb10")]
    assert labels[:7] == ["recipe", "fits", "fetch", "speed", "ready", "context", "port"]
    assert {*labels[7:]} == {"set-up", "warning"}


@pytest.mark.parametrize(
    ("words", "label", "value"),
    [
        (["gemma-4-31b", "--gpu", "gb10"], "fits", "yes: ≈ 50.4 GiB of 119.7 GiB unified memory"),
        (["gemma-4-31b", "--gpu", "gb10", "--set", "gpu-memory-utilization=0.4"], "fits", "no: it needs ≈ "),
        (["gemma-4-31b", "--gpu", "gb10"], "speed", "not published for this set-up on gb10"),
        (["gemma-4-26b-a4b", "--gpu", "h100"], "speed", "tok/s 306.4, without speculation 177.1"),
        (
            ["gemma-4-31b", "--gpu", "gb10"],
            "fetch",
            "≥ 66.3 GB to download (vllm 0.33.0 4.3 GB,",
        ),
        (["gemma-4-31b", "--gpu", "gb10", "--port", "8123"], "port", "8123"),
    ],
)
def test_each_row_has_its_value(words, label, value):
    assert dict(rows(*words))[label].startswith(value)


def test_each_host_has_its_figures():
    planned = command_line.planned("glm-5.3-flash", "--gpu", "gb10")
    shown = dict(rows("glm-5.3-flash", "--gpu", "gb10"))
    assert "unified memory on each of 4 hosts" in shown["fits"]
    assert "to download on each of 4 hosts (" in shown["fetch"]
    last = format_command(planned.plan, brief=True).splitlines()[-1]
    assert last == "# rank 3, on HOST_3: as rank 1, with VLLM_HOST_IP=ADDRESS_3 --node-rank 3"


def test_a_summary_is_short():
    lines = summarize_plan(command_line.planned("gemma-4-31b", "--gpu", "gb10"), 200).splitlines()
    assert len(lines) <= 25
    assert max(map(len, lines)) <= 110
