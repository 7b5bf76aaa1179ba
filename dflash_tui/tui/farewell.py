"""What the panel prints when it is left: what keeps running, and how to come back to it."""

from __future__ import annotations

from collections.abc import Sequence

from dflash_tui.common.formatting import describe_attach_and_stop, format_host_and_port, name_program, read_called_name
from dflash_tui.experiments import store
from dflash_tui.experiments.progress import Progress
from dflash_tui.presentation import experiment_text
from dflash_tui.presentation.client_text import Endpoint, describe_use
from dflash_tui.runs import registry
from dflash_tui.runs.run import Run


def build_farewell() -> str:
    """Return what to print of the servers and the A/Bs that go on now; empty where nothing does."""
    folders = [store.experiment_folder(design.id) for design in store.list_experiments()]
    driven = [store.read_progress(folder) for folder in folders if store.find_driver(folder)]
    return format_farewell(registry.list_living_servers(), driven)


def format_farewell(runs: list[Run], driven: Sequence[Progress] = ()) -> str:
    """Return what to print after the panel: what keeps running, how to attach to it and how to stop it."""
    measured = {progress.current.run for progress in driven if progress.current}
    paragraphs = [_describe_running(run) for run in runs if run.id not in measured]
    paragraphs += [
        f"the {'tune' if progress.design.tuning else 'A/B'} of {progress.design.recipe} continues in the background\n"
        + experiment_text.describe_experiment_commands(progress.design, name_program())
        for progress in driven
    ]
    return "\n".join(paragraphs)


def _describe_running(run: Run) -> str:
    commands = describe_attach_and_stop(run.id)
    if run.plan.rank:
        return f"rank {run.plan.rank} of {run.plan.recipe} keeps running\n{commands}"
    where = format_host_and_port(run.plan.host, run.plan.port)
    use = describe_use(Endpoint.from_run(run), read_called_name())
    return f"{run.plan.recipe} keeps running on {where}\n{commands}\n{use}"
