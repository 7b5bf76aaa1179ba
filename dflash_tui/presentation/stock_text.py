"""What the arms of `--vary stock,ours` are, for somebody who reads only the report."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from dflash_tui.common.secrets import redact_argv, redact_variables
from dflash_tui.experiments import stock
from dflash_tui.experiments.design import Arm, Design
from dflash_tui.planning import start_measures

_UNNAMED = "none"
# Settings whose effect is in the plan.
_SHOWN_OTHERWISE = ("patches.", "env.", "start.")


def is_against_stock(design: Design) -> bool:
    """Whether an experiment holds a launch against the published command alone."""
    return design.vary == stock.KEY and len(design.arms) == 2


def list_stock_rows(design: Design) -> list[str]:
    """Return what stock is and what ours has beyond it, a sentence each; nothing of another experiment."""
    if not is_against_stock(design):
        return []
    bare, ours = design.arms
    plan, kind = bare.plan, f"profile {bare.plan.profile}, mode {bare.plan.mode.value}"
    return [
        f"stock is the published command of {plan.recipe} under bare vLLM {plan.vllm} ({kind}), without our "
        "measures for shorter starts and our patches; patches without which it does not run this pair: "
        f"{_join(plan.patches)}",
        f"ours adds: {_join(_list_additions(bare, ours))}",
        f"in both, since it is what is served: {_join(_format_settings(bare, shared=True))}",
    ]


def format_bare_command(arm: Arm) -> str:
    """Return the command of an arm as somebody else would type it, without secrets."""
    program, *words = redact_argv(arm.plan.argv)
    return shlex.join([Path(program).name, *words])


def _list_additions(bare: Arm, ours: Arm) -> list[str]:
    """Return what is in ours and not in stock: what was named, then what comes with it."""
    mode = [f"mode {ours.plan.mode.value}"] if ours.plan.mode is not bare.plan.mode else []
    method = [f"method {ours.plan.method.value}"] if ours.plan.method is not bare.plan.method else []
    tokens = ours.plan.num_speculative_tokens
    drafts = [f"{tokens} drafted tokens"] if tokens != bare.plan.num_speculative_tokens else []
    patches = [f"patch {name}" for name in ours.plan.patches if name not in bare.plan.patches]
    measures = [f"start.{name}" for name in ours.plan.start if name not in bare.plan.start]
    named = [word for word in _format_settings(ours, shared=False) if not word.startswith(_SHOWN_OTHERWISE)]
    of_measures = {name for measure in start_measures.MEASURES.values() for name in measure.env}
    beyond = {name: value for name, value in ours.plan.env.items() if name not in {*bare.plan.env, *of_measures}}
    env = [f"{name}={value}" for name, value in redact_variables(beyond).items()]
    return [*mode, *method, *drafts, *patches, *measures, *named, *env]


def _format_settings(arm: Arm, *, shared: bool) -> list[str]:
    settings = redact_variables(arm.request.settings)
    return [f"{name}={value}" for name, value in settings.items() if stock.is_shared(name) is shared]


def _join(words: Sequence[str]) -> str:
    return ", ".join(words) or _UNNAMED
