"""Types of the fields of recipes, patches and catalogues: text, names and numbers with their limits. Pure."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

# `$` alone also matches before a final line feed; JSON Schema has no `\Z`.
END = r"$(?!\n)"
# Control characters, and characters that reorder or hide text beside them.
_UNSEEN = r"\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
_PLAIN = rf"[^\x00-\x1f{_UNSEEN}]"
# Shared files could hold texts of any length; a path has 4096 bytes at most.
LONGEST_TITLE, _LONGEST_TEXT, _LONGEST_NAME = 300, 4096, 200

Name = Annotated[str, Meta(pattern=rf"^[a-z0-9][a-z0-9._-]{{0,63}}{END}")]
FileName = Annotated[str, Meta(pattern=rf"^[A-Za-z0-9_][A-Za-z0-9._-]{{0,63}}{END}")]
FlagName = Annotated[str, Meta(pattern=rf"^[a-z][a-z0-9-]*(?:\.[A-Za-z0-9._+-]+)?{END}", max_length=_LONGEST_NAME)]
EnvName = Annotated[str, Meta(pattern=rf"^[A-Za-z_][A-Za-z0-9_]*{END}", max_length=_LONGEST_NAME)]
PLAIN_TEXT = rf"^{_PLAIN}+{END}"
Text = Annotated[str, Meta(min_length=1, max_length=_LONGEST_TEXT, pattern=PLAIN_TEXT)]
MaybeText = Annotated[str, Meta(max_length=_LONGEST_TEXT, pattern=rf"^{_PLAIN}*{END}")]
# Text shown in one line of a list.
Title = Annotated[str, Meta(min_length=1, max_length=LONGEST_TITLE, pattern=PLAIN_TEXT)]
MaybeTitle = Annotated[str, Meta(max_length=LONGEST_TITLE, pattern=rf"^{_PLAIN}*{END}")]
# Text that becomes one word of a command, where a leading dash would make it an option.
PLAIN_WORD = rf"^(?!-){_PLAIN}*{END}"
Word = Annotated[str, Meta(min_length=1, max_length=_LONGEST_TEXT, pattern=PLAIN_WORD)]
# Text that may be folded over lines, as YAML's `>` does.
Prose = Annotated[str, Meta(min_length=1, max_length=1 << 14, pattern=rf"^[^\x00-\x09\x0b-\x1f{_UNSEEN}]*$")]
Link = Annotated[str, Meta(pattern=rf"^(?:https://[^\s\x00-\x1f\x7f-\x9f]+)?{END}", max_length=_LONGEST_TEXT)]
Hosts = Annotated[int, Meta(ge=1, le=64)]
Tokens = Annotated[int, Meta(ge=0, le=64)]
HIGHEST_PORT = 65535
Port = Annotated[int, Meta(ge=1, le=HIGHEST_PORT)]
Gigabytes = Annotated[float, Meta(gt=0, le=10_000)]
Megabytes = Annotated[int, Meta(ge=0, le=10_000_000)]
Size = Annotated[int, Meta(ge=1, le=1 << 40)]
Range = Annotated[tuple[Annotated[float, Meta(ge=0)], ...], Meta(min_length=2, max_length=2)]
Shares = Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(min_length=2, max_length=2)]
Releases = Annotated[
    str, Meta(pattern=rf"^(?:(?:[<>=!]=|[<>])\d+(?:\.\d+)*(?:, ?(?=[<>=!])|{END}))*{END}", max_length=200)
]
VllmVersion = Annotated[
    str, Meta(pattern=rf"^\d+\.\d+\.\d+(?:\.?rc\d+)?(?:\.?post\d+)?(?:\.?dev\d+)?{END}", max_length=60)
]
# A plain `str`: in a union with a list or mapping, msgspec 0.22.0 frees the pattern of a `Text` once too often, and
# Python crashes at exit. recipe_loader checks the words of flags.
FlagValue = bool | int | float | str | list[Word] | dict[str, Any]
