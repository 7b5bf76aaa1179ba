"""What NCCL says of the network between ranks, with `NCCL_DEBUG=INFO`. Pure; NCCL 2.22 to 2.30.

NCCL writes past Python, and into a buffer: its lines have no prefix of vLLM's, come in blocks of 4 KiB, and one may be
cut by a line of another writer. So each of several lines is enough.
"""

from __future__ import annotations

import re

from dflash_tui.common.line_buffer import LineBuffer
from dflash_tui.common.sanitizer import LINE_LIMIT, clean_line

# The name of the fact, and NCCL's own word for plain sockets.
FACT, SOCKETS = "NCCL network", "Socket"
_SIGN = "NCCL INFO "
_SAID = re.compile(
    r"NCCL INFO (?:Using network (?P<chosen>[\w. -]{1,40})$"
    r"|Channel \S+ : \S+ -> \S+ \[\w+\] via NET/(?P<used>[\w. -]{1,40})/\d)"
)


def parse_network(line: str) -> str:
    """Return what a line says that NCCL talks over, such as `IB` or `Socket`; empty for any other line."""
    match = _SAID.search(line) if _SIGN in line else None
    return (match["chosen"] or match["used"]).strip() if match else ""


def describe_network(network: str) -> str:
    """Return NCCL's word for a network as users call it; empty for none."""
    return {"IB": "RoCE", SOCKETS: "sockets"}.get(network, network)


class NetworkReader:
    """Reads from the bytes of a log, which come in pieces, what NCCL talks over."""

    def __init__(self) -> None:
        self._lines = LineBuffer(LINE_LIMIT)
        self.network = ""
        """What it said last; empty before."""

    def feed(self, data: bytes) -> None:
        """Take in further bytes of the log."""
        for line in self._lines.feed(data):
            if _SIGN.encode() in line:
                self.network = parse_network(clean_line(line.decode(errors="replace"))) or self.network
