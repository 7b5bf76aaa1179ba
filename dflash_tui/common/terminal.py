"""Tell whether somebody looks at a terminal that can be drawn on."""

from __future__ import annotations

import sys


def has_terminal() -> bool:
    """Return whether input, data and status are all a terminal: keys come by the first, Textual draws on the last."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
