"""What a tune of the highlighted recipe would try, laid over the launch screen, with its budget."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding
from textual.content import Content

from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import format_duration
from dflash_tui.planning.plan import Plan
from dflash_tui.presentation import experiment_text
from dflash_tui.tui.dialogs.new_experiment import NewExperiment, PlannedExperiment
from dflash_tui.tui.widgets.basic import MUTED

_MINUTES = (10, 20, 30, 45, 60, 90, 120, 240)


class NewTune(NewExperiment, inherit_bindings=False):
    """Asks whether a tune shall begin; ends with its id once its driver lives, or with None."""

    HEADING: ClassVar = "new tune"
    BINDINGS: ClassVar = [
        Binding("enter", "begin", "begin"),
        Binding("enter", "take", "take it", priority=True),
        Binding("v", "vary", "try", priority=True),
        Binding("plus,equals_sign", "budget(1)", "budget", key_display="+ -"),
        Binding("minus", "budget(-1)", "a smaller budget", show=False),
        Binding("question_mark", "app.keys", "help", key_display="?"),
        Binding("escape,q", "leave", "leave it", key_display="esc"),
    ]
    TYPED: ClassVar = "what is tried"
    EXAMPLES: ClassVar[Sequence[tuple[str, str]]] = (
        ("empty", "all that may matter here"),
        ("mode=graphs,compile", "only that"),
        ("mode=graphs,compile n=7,11", "both, apart by a space"),
    )

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.vary, self.minutes = "", 30

    def render_head(self) -> Content:
        """Return what would begin, and how long it may take."""
        return Content.assemble(
            ("Tune ", "bold"), (self.plan.recipe, "bold $primary"), f"  {self.vary}\n",
            (f"{format_duration(60.0 * self.minutes)} of boots", "bold"),
            ("; the best so far can be kept at any time", MUTED),
        )  # fmt: skip

    def plan_now(self) -> PlannedExperiment:
        """Return the tune that would begin now; runs in a thread of its own.

        Raises:
            UsageError: it cannot be planned so, or another experiment runs.
        """
        from dflash_tui.experiments import controller, tuner
        from dflash_tui.experiments.builder import ExperimentRequest

        built = tuner.build_tune(
            ExperimentRequest(self.plan.relaunch_request),
            budget=60.0 * self.minutes,
            axes=_split_axes(self.vary),
            cluster=self.plan.cluster,
        )
        in_the_way = controller.find_disturbing_servers(built.design)
        rows = experiment_text.list_tune_rows(built.design, built.boot, [run.id for run in in_the_way])
        return PlannedExperiment(built.design, [built.resolved], rows)

    def read_variation(self, words: str) -> None:
        """Take what was typed; empty: all that may matter."""
        self.vary = words

    def action_budget(self, step: int) -> None:
        place = _MINUTES.index(self.minutes) + step
        self.minutes = _MINUTES[max(0, min(len(_MINUTES) - 1, place))]
        self.draw()


def _split_axes(words: str) -> tuple[str, ...]:
    """Return what is to be tried, one for each word; quotes hold one together."""
    try:
        return tuple(shlex.split(words))
    except ValueError as error:
        raise UsageError("quotes do not match", evidence=str(error)) from None
