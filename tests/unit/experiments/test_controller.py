"""Ending the driver of an experiment that may end by itself at any moment."""

import subprocess

from dflash_tui.experiments import controller, store
from tests.support.experiment_factories import a_design


def test_stopping_already_ended_driver_is_no_error(monkeypatch):
    """Between the moment in which it was found and that in which it would be told to."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    found = iter([store.Driver(gone.pid, "boot:1"), None])
    monkeypatch.setattr(store, "find_driver", lambda _: next(found))
    assert controller.stop_driver(a_design())
