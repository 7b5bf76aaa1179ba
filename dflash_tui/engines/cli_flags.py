"""Check a plan's flags against the engine's own parser, so that a wrong one is named before vLLM exits over it."""

from __future__ import annotations

import json

from dflash_tui.common.formatting import suggest_nearest
from dflash_tui.engines.inventory import ServeOptions
from dflash_tui.planning.advice import release_flags, release_values
from dflash_tui.planning.advice.flag_conflicts import find_conflicts
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.request import Advice, hint_setting

_MEANT = ", did you mean {}?"
FIX: Advice = ("correct the recipe, or drop a flag with ", hint_setting("NAME", "null", is_example=True))


def find_flag_mistakes(plan: Plan, options: ServeOptions) -> list[str]:
    """Return a sentence for each flag, value or key of speculative-config that this vLLM does not know."""
    words = plan.argv[3:]
    mistakes, short, keys, unknown = list[str](), list[str](), list[str](), list[str]()
    for index, word in enumerate(words):
        if not word.startswith("--"):
            continue
        spelled, joined, joined_value = word.partition("=")
        name, _, key = spelled.partition(".")
        plain = name.replace("_", "-")
        name = _complete_flag(plain, options)
        if name != plain:
            short.append(release_flags.explain_short_flag(plain[2:], name[2:]))
        follows = index + 1 < len(words) and not words[index + 1].startswith("--")
        value = joined_value if joined else words[index + 1] if follows else None
        if name not in options.flags:
            unknown.append(name)
        elif (choices := options.flags[name]) and value is not None and not key and value not in choices:
            hint = suggest_nearest(value, choices, "did you mean {}?") or f"it takes {', '.join(choices)}"
            mistakes.append(f"{name} {value} is not a choice of vLLM {plan.vllm}; {hint}")
        elif name == "--speculative-config" and value and not key:
            keys += _find_key_mistakes(value, options, plan.vllm)
        elif not choices and not key:
            values = () if value is None else (value,)
            mistakes += filter(None, [release_values.explain_wrong_number(plan.vllm, name[2:], values)])
    mistakes = [*release_flags.explain_some(mistakes, str, "values that it refuses"), *short, *keys]
    flags = [flag.removeprefix("--") for flag in options.flags]
    mistakes += release_flags.explain_unknown_flags(plan.vllm, unknown, flags, ", did you mean --{}?")
    return mistakes or list(find_conflicts(release_values.read_flags(plan.vllm, words)))


def _complete_flag(name: str, options: ServeOptions) -> str:
    """Return the one flag that starts with `name`, as argparse takes it; else `name` itself."""
    longer = [flag for flag in options.flags if flag.startswith(name)]
    return longer[0] if len(longer) == 1 else name


def _find_key_mistakes(value: str, options: ServeOptions, vllm: str) -> list[str]:
    def explain(key: str) -> str:
        hint = suggest_nearest(key, options.speculation, _MEANT)
        return f"vLLM {vllm} has no key {key} in --speculative-config{hint}"

    unknown = [key for key in json.loads(value) if key not in options.speculation]
    return release_flags.explain_some(unknown, explain, "keys that it does not have")
