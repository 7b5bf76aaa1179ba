"""Decode JSON from untrusted files and strip terminal control characters from its strings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from dflash_tui.common import private_files
from dflash_tui.common.sanitizer import clean_json_value

T = TypeVar("T")
_LARGEST = 64 << 20
# Lists and objects in one text, each of which takes some 60 bytes of memory for two in the file; of the largest records
# there is one for each request.
_MOST_CONTAINERS = 1 << 20
# What texts in JSON can hold that is not plain; quoted quotes, backslashes and slashes are.
_SUSPECT = re.compile(rb"\\[bfnrtu]|[\x7f-\xff]")


def register_type(kind: type[msgspec.Struct]) -> None:
    """Let msgspec inspect a type, and all types in it, while its module is imported.

    Otherwise it does so when the first text is read, and msgspec 0.22 shows a type that one thread is halfway through
    to the next one, which then reads a null pointer. For every type that `msgspec.json.decode` or `msgspec.convert`
    is given anywhere.
    """
    msgspec.json.Decoder(kind)


def read_own_json(path: Path, kind: type[T]) -> T | None:
    """Return what a JSON file of ours holds; None when it is gone, is no file, or cannot be used."""
    try:
        return msgspec.json.decode(private_files.read_file(path, _LARGEST), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def decode_untrusted(data: bytes, decoder: msgspec.json.Decoder[T], *, one_line: bool = False) -> T:
    """Return the value that JSON holds, with clean strings: each as one line, or with the lines that it has.

    Raises:
        msgspec.MsgspecError: it is not JSON, not UTF-8, nested too deeply, or not what the decoder is for.
    """
    try:
        # Nearly all that is read is plain, and some is read every second.
        if not _SUSPECT.search(data):
            return decoder.decode(data)
        return msgspec.convert(clean_json_value(decode_untyped(data), one_line=one_line), decoder.type, str_keys=True)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from None


def decode_untyped(data: bytes) -> Any:
    """Return the value that JSON holds, whatever it is, in strings of any kind.

    Raises:
        msgspec.MsgspecError: it is not JSON, or has more lists and objects than any record.
        UnicodeDecodeError: it is not UTF-8.
        RecursionError: it is nested too deeply.
    """
    if data.count(b"[") + data.count(b"{") > _MOST_CONTAINERS:
        raise msgspec.DecodeError(f"more than {_MOST_CONTAINERS} lists and objects")
    return msgspec.json.decode(data)
