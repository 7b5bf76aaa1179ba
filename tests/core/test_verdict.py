"""What is said of arms: the measure, the word, the cause, and when a later start has paid back."""

from collections.abc import Sequence

import msgspec

from dflash_tui.core import verdict
from dflash_tui.core.experiment import AbReport, Boot, Comparison, Design, Word
from tests.boots import boots, modes


def only(of: Design, measured: Sequence[Boot]) -> Comparison:
    """The one comparison of an experiment of two arms."""
    (found,) = verdict.judge(of, measured)
    return found


def test_a_faster_arm_is_called_faster_in_steps():
    """Eager against compile is judged on steps/s: 20 % with boots 1 % apart is shown."""
    found = only(modes(), boots(modes(), [10.0, 12.0, 12.1, 10.1]))
    assert (found.word, found.measure, found.suggestive, found.cause) == (Word.FASTER, "steps/s", False, "steps/s")
    assert found.ratio is not None
    assert found.ratio.low < 1.2 < found.ratio.high
    assert found.boots == (2, 2)


def test_a_report_survives_its_file():
    """All of it can be written and read again."""
    of = modes()
    report = verdict.report(of, boots(of, [10.0, 12.0, 12.1, 10.1]))
    assert report.complete
    assert msgspec.json.decode(msgspec.json.encode(report), type=AbReport) == report
