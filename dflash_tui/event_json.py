"""Events <-> lines of JSON: what is written to `samples.jsonl` and printed by `--json`, and what is believed of it."""

from __future__ import annotations

import msgspec

from dflash_tui.common import untrusted_json
from dflash_tui.events import Event, Recorded

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Recorded] = msgspec.json.Decoder(Recorded)
YEAR_2100 = 4_102_444_800.0


def encode(event: Event) -> bytes:
    """Return the event as one line of JSON, without the line end."""
    return _encoder.encode(event)


def decode_recorded(line: bytes) -> Recorded | None:
    """Return the event of a line of `samples.jsonl`, or None for what is none: half-written, older, impossible."""
    try:
        event = untrusted_json.decode_untrusted(line, _decoder, one_line=True)
    except msgspec.MsgspecError:
        return None
    return event if 0 <= event.at < YEAR_2100 else None
