"""What to do where uv could not install an engine."""

from __future__ import annotations

import re
from pathlib import Path

_ADVICE = (
    (
        r"building (?:from source|source distributions).{0,80} is disabled|no usable wheels|must have a hash",
        "choose a version that has wheels, or let the recipe build it: `source_builds: true` in its `engine`",
    ),
    (
        r"no space left|disk quota exceeded",
        "free some space where engines are (XDG_DATA_HOME) and in uv's cache (UV_CACHE_DIR, `uv cache clean`), or put "
        "them elsewhere, and run the same command again",
    ),
    (
        r"temporarily unavailable|os error 11\b",
        "uv may start no more threads: `ulimit -u` is the limit, `ps -u $USER` who runs",
    ),
    (
        r"unknownissuer|certificate",
        "the network shows a certificate of its own, as a company's proxy does: export UV_SYSTEM_CERTS=1 for those of "
        "the system, or SSL_CERT_FILE=/its.pem, and run the same command again",
    ),
    (
        r"dns|connect|network|timed? ?out|offline|fetch|request",
        "check the network, or point uv to a mirror or wheel folder (UV_DEFAULT_INDEX, UV_FIND_LINKS), and run the "
        "same command again",
    ),
)


def advise_on_install_error(evidence: str, recorded: Path) -> str:
    """Return what to do about an error of uv: of the first signs in it that are known."""
    if advice := next((advice for signs, advice in _ADVICE if re.search(signs, evidence, re.IGNORECASE)), ""):
        return advice
    if recorded.exists():
        return f"its packages are those of the first installation; to resolve them again: rm {recorded}"
    return (
        "name a package index or wheel folder that has what is asked for (UV_DEFAULT_INDEX, UV_FIND_LINKS), or correct "
        "the recipe's `engine` part"
    )
