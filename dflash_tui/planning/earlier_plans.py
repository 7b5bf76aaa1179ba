"""Records of earlier releases: plans, requests and what holds them -> the form that they have now. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from dflash_tui.common.untrusted_json import decode_json
from dflash_tui.planning.request import LaunchRequest

T = TypeVar("T")
_RENAMED = {"unneeded": "skipped_patches", "unpatched": "disabled_patches", "differs": "deviations"}
# Keys that a plan or an arm had before 2026-11-22, and a label of then that says a thing twice; where none is, nothing
# has to be upgraded.
_EARLIER = re.compile(
    rb'"(?:asked|options|unneeded|unpatched|differs)"\s*:|synthetic acceptance[^"]*; synthetic acceptance"'
)

_UNTYPED: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def decode_record(data: bytes, decoder: msgspec.json.Decoder[T], upgrade: Callable[[Any], Any]) -> T:
    """Return a record that others may have written, in the form of this release or of an earlier one.

    Raises:
        msgspec.MsgspecError: it is not JSON, or not what the decoder is for.
    """
    if not _EARLIER.search(data):
        return decode_json(data, decoder)
    return msgspec.convert(upgrade(decode_json(data, _UNTYPED)), decoder.type, str_keys=True)


def upgrade_plan(fields: Any) -> Any:
    """Return the JSON fields of a plan as they are called now."""
    if not isinstance(fields, dict):
        return fields
    plan = {_RENAMED.get(name, name): value for name, value in fields.items() if name != "asked"}
    if options := fields.get("asked"):
        plan["request"] = upgrade_options(
            {"": fields.get("recipe"), **options} if isinstance(options, dict) else options
        )
    if isinstance(label := plan.get("synthetic"), str):
        plan["synthetic"] = upgrade_label(label)
    return plan


def upgrade_label(label: str) -> str:
    """Return why figures are no real model's without what an earlier part says already."""
    parts = label.split("; ")
    return "; ".join(part for place, part in enumerate(parts) if not any(part in before for before in parts[:place]))


def upgrade_options(options: Any) -> Any:
    """Return a mapping of options of `up` as the JSON fields of the request that they were.

    Raises:
        msgspec.ValidationError: it is no such mapping.
    """
    return msgspec.to_builtins(LaunchRequest.from_options(msgspec.convert(options, dict[str, str])))


def upgrade_record(fields: Any) -> Any:
    """Return the JSON fields of a record with a plan in it as they are called now."""
    return {**fields, "plan": upgrade_plan(fields["plan"])} if isinstance(fields, dict) and "plan" in fields else fields
