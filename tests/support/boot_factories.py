"""Experiments and boots as values, for tests of what is judged of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from dflash_tui.events import RequestDone
from dflash_tui.experiments.design import Arm, Boot, Conditions, Design
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Mode
from dflash_tui.planning.request import LaunchRequest

AT_REST = Conditions(at=0.0, power="mains", throttle=(), foreign=())


def plan(**changes: Any) -> Plan:
    """Return a plan with drafts of eight tokens."""
    usual: dict[str, Any] = {
        "recipe": "recipe", "title": "", "synthetic": "", "mode": Mode.EAGER, "target": "target", "drafter": "drafter",
        "num_speculative_tokens": 8, "served_name": "target", "port": 8000, "engine_folder": "/engine",
        "argv": ("/engine/bin/vllm", "serve", "target", "--port", "8000"), "env": {}, "patches": (),
    }  # fmt: skip
    return Plan(**{**usual, **changes})


def design(vary: str, arms: dict[str, Plan], order: Sequence[int], **changes: Any) -> Design:
    """Return an experiment with these arms, launched in this order."""
    usual: dict[str, Any] = {
        "id": "ab", "made_at": 0.0, "version": "1", "recipe": "recipe", "vary": vary, "suite": "field", "digest": "",
        "arms": tuple(Arm(name, LaunchRequest(recipe="toy"), plan) for name, plan in arms.items()),
        "order": tuple(order),
    }  # fmt: skip
    return Design(**{**usual, **changes})


def modes(order: Sequence[int] = (0, 1, 1, 0), **changes: Any) -> Design:
    """Return eager against compile."""
    eager = plan(argv=(*plan().argv, "--enforce-eager"))
    return design("mode", {"eager": eager, "compile": plan(mode=Mode.COMPILE)}, order, **changes)


def request(kind: str, speed: float, al: float = 3.0, **changes: Any) -> RequestDone:
    """Return a request of 200 tokens at `speed` steps/s and acceptance length `al`; AL 1 is without speculation."""
    tok_s = speed * al
    usual: dict[str, Any] = {
        "at": 0.0, "kind": kind, "tokens": 200, "prompt_tokens": 20, "decode_tok_s": tok_s, "total": 200 / tok_s,
        "steps": 100.0 if al > 1 else 0.0, "accepted": 100.0 * (al - 1), "finish": "length",
        "digests": (f"{kind} 40", f"{kind} 200", kind),
    }  # fmt: skip
    return RequestDone(**{**usual, **changes})


def boot(of: Design, number: int, requests: Sequence[RequestDone], **changes: Any) -> Boot:
    """Return a boot of the arm that the design has at `number`, launched as planned, of which all is known."""
    arm = of.order[number]
    its = of.arms[arm].plan
    usual = Boot(
        number=number, arm=arm, run=f"run{number}", cache="cached", ready=60.0, requests=tuple(requests),
        engine="vllm 0.32.0", gpus=("GPU",), driver="580", argv=its.argv, env=its.env,
        patches=dict.fromkeys(its.patches, "sha"), versions={"vllm": "0.32.0", "torch": "2.11.0"},
        generated=sum(each.tokens for each in requests), before=AT_REST, after=AT_REST,
    )  # fmt: skip
    return msgspec.structs.replace(usual, **changes)


KINDS = ("Q&A", "Code", "JSON", "Math", "LongCode")


def boots(of: Design, speeds: Sequence[float], al: Sequence[float] | None = None, **changes: Any) -> list[Boot]:
    """Return a boot for each of the order with these steps/s; prompts differ by a tenth each."""
    lengths = al or [3.0] * len(speeds)
    return [
        boot(of, n, [request(kind, speed * 1.1**i, lengths[n]) for i, kind in enumerate(KINDS)], **changes)
        for n, speed in enumerate(speeds)
    ]
