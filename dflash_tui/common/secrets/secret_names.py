"""Tell by its name whether a variable, a flag or a key in a configuration holds a secret. Pure."""

from __future__ import annotations

import re
from functools import lru_cache

# Tokens of a text, keys of a mapping or of attention: of a name with one of these the rest decides.
_HARMLESS = re.compile(
    r"(?i)tokens?[-_]?(?:ids?|tree|threshold|type|budget|count|limit|len|length|num|size|level|index|prob|positions?)s?"
    r"(?![a-z])"
    r"|(?<![a-z])(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|special|boi|eoi|per)[-_]tokens?(?![a-z])"
    r"|(?<![a-z])(?:num|cache|sort|hash|routing|partition|lookup)[-_]keys?(?![a-z])"
    r"|key[-_]?(?:values?|cache|heads?|dim|states?|proj|norm|scale|quant|length|board|ring|map|word|point|frame|file)s?"
    r"(?![a-z])"
    r"|(?:mon|tur|hoc|don)key|allow[-_]credentials"
)
_SECRET = re.compile(
    r"(?i)token(?!s|iz)|(?:api|access|auth|hub|bearer|secret)[-_]?tokens|key|secret|passw|passphrase|credential"
    r"|authorization|(?<!by)(?<!com)(?<!tres)(?<!two[-_])(?<!multi[-_])(?<!single[-_])pass[-_]?\d*$"
    r"|[-_]pwd$|(?-i:^[Pp]wd$)|(?:^|[-_.])(?:pat|auth|jwt|cookie|bearer)$"
)
# Words of a variable of the environment, which are set apart and mean no attention's keys.
_VARIABLE = re.compile(
    r"(?:^|_)(?:KEYS?|PASS|PAT|AUTH|JWT|COOKIES?|CREDS?)(?:_|$)|_PWD(?:_|$)"
    r"|^TOKENS$|(?<!MAX)(?<!MIN)(?<!NUM)(?<!NEW)(?<!PER)(?<!OUT)_TOKENS$"
)
_FILE = re.compile(r"(?i)(?:file|path|dir|folder|sock)$")
_OF_TEXT = re.compile(r"(?i)token")


@lru_cache(maxsize=2048)
def is_secret(name: str) -> bool:
    """Whether a variable, a flag or a key of that name is likely to hold a secret; the name of a file is none."""
    if _FILE.search(name):
        return False
    return bool(_SECRET.search(_HARMLESS.sub("", name)) or (name.isupper() and _VARIABLE.search(name)))


def holds_secret(name: str, value: object) -> bool:
    """Whether what stands under that name is likely to be a secret: a switch and a number of tokens are none."""
    text = str(value).strip().lower()
    if not is_secret(name) or text in {"", "true", "false", "none", "null"}:
        return False
    return not (_OF_TEXT.search(name) and re.fullmatch(r"[-+\d.e,\s()\[\]]*", text))
