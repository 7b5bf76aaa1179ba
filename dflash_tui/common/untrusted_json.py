"""JSON that others may have written -> values whose texts do nothing to a terminal."""

from __future__ import annotations

import re
from typing import TypeVar

import msgspec

from dflash_tui.common.sanitizer import clean_json_value

T = TypeVar("T")
# What texts in JSON can hold that is not plain; quoted quotes, backslashes and slashes are.
_SUSPECT = re.compile(rb"\\[bfnrtu]|[\x7f-\xff]")


def decode_untrusted(data: bytes, decoder: msgspec.json.Decoder[T], *, one_line: bool = False) -> T:
    """Return what JSON holds, with its texts plain: each as one line, or with the lines that it has.

    Raises:
        msgspec.MsgspecError: it is not JSON, not UTF-8, nested too deeply, or not what the decoder is for.
    """
    try:
        if not _SUSPECT.search(data):  # nearly all that is read, and some is every second
            return decoder.decode(data)
        return msgspec.convert(
            clean_json_value(msgspec.json.decode(data), one_line=one_line), decoder.type, str_keys=True
        )
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None
