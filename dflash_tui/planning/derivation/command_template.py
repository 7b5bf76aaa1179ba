"""The command of a recipe of sparkrun or eugr's spark-vllm-docker, whose `{names}` are its defaults. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dflash_tui.common.errors import UsageError

_LARGEST = 64 << 10
# A brace of JSON has a quote behind it, so it is none of these.
_NAME = re.compile(r"\{([A-Za-z_]\w*)\}")


def fill_template(recipe: Mapping[str, Any]) -> str:
    """Return the command of a recipe with its defaults in place of their names.

    Args:
        recipe: What the file says: `command`, and `defaults` and `model` for the names in it.

    Raises:
        UsageError: a name has no value in the file, or the command becomes longer than any.
    """
    defaults = recipe.get("defaults")
    values = {"model": recipe.get("model"), **(defaults if isinstance(defaults, dict) else {})}
    room = _LARGEST

    def find(match: re.Match[str]) -> str:
        nonlocal room
        value = values.get(match[1])
        if isinstance(value, dict | list) or value is None:
            raise UsageError(f"{match[0]} has no value in the file", hint="add it to its defaults")
        text = str(value).lower() if isinstance(value, bool) else str(value)
        room -= len(text)
        if room < 0:
            raise UsageError("the command becomes longer than any that starts vLLM")
        return text

    command = str(recipe.get("command"))
    # Doubled braces are how eugr's recipes write those of JSON.
    is_doubled = "{{" in command
    filled = _NAME.sub(find, command.replace("{{", "\0").replace("}}", "\1") if is_doubled else command)
    return filled.replace("\0", "{").replace("\1", "}")
