"""What the cache and the hub say of the models of a plan, asked while it is looked at."""

from __future__ import annotations

from collections.abc import Callable

from dflash_tui.engines import model_hub
from dflash_tui.engines.model_hub import ModelAvailability
from dflash_tui.planning.plan import Plan, PlannedModel
from dflash_tui.tui.launch_selection import LaunchSelection


class ModelLookups:
    """The models that were looked up, by name and revision; those of a plan are asked about once."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], ModelAvailability] = {}
        self._looked_up_models: tuple[PlannedModel, ...] = ()

    def forget(self) -> None:
        """Ask again, also about models that were asked about."""
        self._answers, self._looked_up_models = {}, ()

    def ask(self, plan: Plan) -> bool:
        """Return whether models of the plan have to be looked up, which is said once."""
        if plan.models == self._looked_up_models or len(self._find(plan)) == len(plan.models):
            return False
        self._looked_up_models = plan.models
        return True

    def list_known(self, plan: Plan) -> tuple[ModelAvailability, ...]:
        """Return what is known of the models of a plan; nothing before all were looked up."""
        answers = self._find(plan)
        return answers if len(answers) == len(plan.models) else ()

    def _find(self, plan: Plan) -> tuple[ModelAvailability, ...]:
        answers = (self._answers.get((model.name, model.revision)) for model in plan.models)
        return tuple(model for model in answers if model)

    async def look_up(self, plan: Plan, choice: LaunchSelection, draw: Callable[[], None]) -> None:
        """Look up the models of a plan, tell `choice` which are here, and `draw` after each answer."""
        for model in plan.models:
            key = model.name, model.revision
            self._answers[key] = await model_hub.look_up_model(*key)
            if self._answers[key].complete:
                local = model_hub.read_local_model(self._answers[key])
                choice.models = {**choice.models, key: local}
            draw()
