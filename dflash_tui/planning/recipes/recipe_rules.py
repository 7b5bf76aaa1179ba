"""What a recipe may set: the flags that are ours, and the values that vLLM can be given. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from dflash_tui.common.secrets import advise_on_secret
from dflash_tui.planning.field_types import PLAIN_TEXT

# An eighth of the longest word that Linux takes in a command.
_LONGEST_VALUE = 1 << 14
FIRST_WITH_DFLASH = "0.20.0"
RESERVED_FLAGS = frozenset(
    {
        "host",
        "port",
        "served-model-name",
        "speculative-config",
        "enforce-eager",
        "model",
        "revision",
        "api-key",
        "disable-access-log-for-endpoints",
        "spec-method",
        "spec-model",
        "spec-tokens",
        "config",  # a file of flags, which would hide these
        "uds",  # in place of host and port
    }
)
# Flags that are secrets, with the shortest beginning that vLLM's parser takes for each.
_SECRET_FLAGS = {"hf-token": "hf-t", "api-key": "api-k", "ssl-keyfile-password": "ssl-keyfile-"}
RESERVED_SPECULATION = frozenset({"method", "model", "revision", "num_speculative_tokens"})


def explain_reserved_flag(flag: str) -> str:
    """Return why a recipe may not set `flag`; empty when it may.

    As vLLM reads it: `_` for `-`, any beginning of a name for the name, and what follows a dot is a key inside it.
    """
    plain = flag.replace("_", "-").lower().partition(".")[0].removeprefix("no-")
    for secret, shortest in _SECRET_FLAGS.items():
        if secret.startswith(plain) and plain.startswith(shortest):
            return f"holds a secret: {advise_on_secret(secret)}"
    taken = any(name.startswith(plain) for name in RESERVED_FLAGS)
    return "is set by dflash-tui itself and cannot be set here" if taken else ""


def _explain_unwritable_value(value: Any) -> str:
    try:
        written = json.dumps(value, allow_nan=False, ensure_ascii=False).encode()  # lone surrogates are no text either
    except (TypeError, ValueError, RecursionError) as error:
        return f"cannot be written as JSON: {error}"
    return f"expected at most {_LONGEST_VALUE:,} bytes" if len(written) > _LONGEST_VALUE else ""


def explain_unusable_value(flag: str, value: Any) -> str:
    """Return why `value` cannot be passed to vLLM or used for planning; empty when it can."""
    if why := _explain_unwritable_value(value):
        return why
    if value is None:
        return ""
    if isinstance(value, str) and not re.search(PLAIN_TEXT, value):
        return "expected text in one line, without control characters"
    if flag == "tensor-parallel-size" and not (type(value) is int and value > 0):
        return f"expected a number of GPUs, not {value!r}"
    if flag == "gpu-memory-utilization" and not (type(value) in {int, float} and 0 < value <= 1):
        return f"expected a share above 0 and up to 1, not {value!r}"
    return ""
