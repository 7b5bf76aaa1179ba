"""Experiments that a driver of their own leads, and that driver."""

import os
import signal

from dflash_tui.experiments import store
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.design import Design
from dflash_tui.experiments.progress import Progress
from dflash_tui.experiments.store import Driver
from tests.support.values import present
from tests.support.waiting import wait_until


def progress(design: Design) -> Progress:
    return store.read_progress(store.experiment_folder(design.id))


def read_report(design: Design) -> ExperimentReport:
    """Return the report of an experiment that is over."""
    return present(store.read_report(store.experiment_folder(design.id)))


def find_driver(design: Design) -> Driver:
    """Return the driver, which runs."""
    return present(store.find_driver(store.experiment_folder(design.id)))


def kill_driver(design: Design) -> None:
    os.kill(find_driver(design).pid, signal.SIGKILL)
    wait_until(lambda: not store.find_driver(store.experiment_folder(design.id)))
