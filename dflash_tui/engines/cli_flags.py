"""Check a plan's flags with the engine's own parser, so that a wrong one is named before vLLM exits over it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.common.sanitizer import join_clean_lines
from dflash_tui.engines.inventory import ServeOptions
from dflash_tui.planning import serve_flags
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import Advice, hint_setting
from dflash_tui.planning.serve_flags import find_conflicts

FIX: Advice = ("correct the recipe, or drop a flag with ", hint_setting("NAME", "null", is_example=True))
_SPECULATION = "speculative-config"
_LONGEST = 300


def find_flag_mistakes(plan: Plan, options: ServeOptions) -> list[str]:
    """Return a sentence for each flag, choice and key of speculative-config that this vLLM does not know.

    Where it knows all of them, what its parser says against another value, or which two it refuses together.
    """
    names = frozenset(flag.removeprefix("--") for flag in options.flags)
    mistakes = serve_flags.find_mistakes(plan.vllm, plan.argv[3:], names)
    flags = serve_flags.read_flags(names, plan.argv[3:])
    mistakes += serve_flags.explain_some([*_find_wrong_choices(flags, options)], str, "values that it refuses")
    if keys := flags.get(_SPECULATION):
        mistakes += _find_key_mistakes(keys[0], options, plan.vllm)
    if options.refusal and not mistakes:
        mistakes = [f"vLLM {plan.vllm} refuses it: {join_clean_lines(options.refusal)[:_LONGEST]}"]
    return mistakes or list(find_conflicts(flags))


def _find_wrong_choices(flags: Mapping[str, Sequence[str]], options: ServeOptions) -> Iterator[str]:
    for name, values in flags.items():
        choices = options.flags.get(f"--{name}")
        if choices and values and values[0] not in choices:
            hint = suggest_nearest(values[0], choices, "did you mean {}?") or f"it takes {', '.join(choices)}"
            yield f"--{name} {values[0]} is not a choice; {hint}"


def _find_key_mistakes(value: str, options: ServeOptions, vllm: str) -> list[str]:
    def explain(key: str) -> str:
        hint = suggest_nearest(key, options.speculation, ", did you mean {}?")
        return f"vLLM {vllm} has no key {key} in --{_SPECULATION}{hint}"

    unknown = [key for key in json.loads(value) if key not in options.speculation]
    return serve_flags.explain_some(unknown, explain, "keys that it does not have")
