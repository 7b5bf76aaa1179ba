"""What the command line makes of its words: launches as they are planned here, and experiments."""

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from typing import NamedTuple

from dflash_tui.cli.commands.experiments import read_experiment_request
from dflash_tui.cli.main import main
from dflash_tui.cli.parser import build_parser
from dflash_tui.cli.requests import read_launch_request
from dflash_tui.experiments import builder
from dflash_tui.experiments.design import Design
from dflash_tui.launch.planner import PlannedLaunch, plan_launch_here
from dflash_tui.planning.recipes.resolution import ResolvedRecipe


def planned(*words: str) -> PlannedLaunch:
    """Return what `dflash-tui plan` with these words plans."""
    return plan_launch_here(read_launch_request(build_parser().parse_args(["plan", *words])))


def experiment(*words: str) -> tuple[Design, list[ResolvedRecipe]]:
    """Return the experiment that `dflash-tui ab` with these words begins."""
    return builder.build_experiment(read_experiment_request(build_parser().parse_args(["ab", *words])))


class Said(NamedTuple):
    """What a command has printed."""

    stdout: str
    stderr: str


def dflash(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run `dflash-tui` with these words in a process of its own, which nobody answers."""
    return subprocess.run([sys.executable, "-m", "dflash_tui", *words], capture_output=True, text=True, check=False,
                          env=os.environ | env, stdin=subprocess.DEVNULL, timeout=1500)  # fmt: skip


def run(*words: str, code: int = 0) -> Said:
    """Run `dflash-tui` with these words in this process, which is to end with that exit code."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            ended: object = main([*words])
        except SystemExit as parsed:  # by the parser
            ended = parsed.code
    assert ended == code, err.getvalue()
    return Said(out.getvalue(), err.getvalue())
