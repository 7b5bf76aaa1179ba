"""What NCCL says of the network between ranks, with `NCCL_DEBUG=INFO`. Pure; NCCL 2.22 to 2.30.

NCCL writes past Python, and into a buffer: its lines have no prefix of vLLM's, come in blocks of 4 KiB, and one may be
cut by a line of another writer. So each of several lines is enough.
"""

from __future__ import annotations

import re

from dflash_tui.common.sanitizer import LINE_LIMIT, clean_line
from dflash_tui.common.untrusted_json import LineBuffer

# The name of the fact, and NCCL's own word for plain sockets.
FACT, SOCKETS = "NCCL network", "Socket"
_SIGN = "NCCL INFO "
_INFORMS = re.compile(r"^\S+:\d+:\d+ \[-?\d+\] NCCL INFO (?!.*(?:ERROR|Error: ))")
_CHANNEL = r"Channel \S+ : \S+ -> \S+ (?:\[\w+\] )?via "
_SAID = re.compile(
    r"NCCL INFO (?:Using network (?P<chosen>[\w. -]{1,40})$"
    rf"|{_CHANNEL}(?:NET/(?P<crossing>[\w. -]{{1,40}})/\d|(?P<within>P2P|SHM)/))"
)
_AS_USERS_CALL_IT = {"IB": "RoCE", SOCKETS: "sockets", "P2P": "GPU to GPU", "SHM": "shared memory"}
# What goes from host to host tells more than what stays on one, and both more than what NCCL chose for hosts.
_TELLING = ("crossing", "within", "chosen")


class NetworkLines:
    """Puts together what the lines of one log say that NCCL talks over."""

    def __init__(self) -> None:
        self._networks = dict.fromkeys(_TELLING, "")

    def read_line(self, line: str) -> None:
        """Take in a line; most say nothing of it."""
        match = _SAID.search(line) if _SIGN in line else None
        if match and match.lastgroup:
            self._networks[match.lastgroup] = match[match.lastgroup].strip()

    @property
    def network(self) -> str:
        """NCCL's word for it, such as `IB`, `Socket` or, between GPUs of one host, `P2P`; empty before it said any."""
        return next(filter(None, self._networks.values()), "")


def is_information(line: str) -> bool:
    """Whether NCCL only informs, also of what it looked for and does without; no error has the line."""
    return _SIGN in line and _INFORMS.match(line) is not None


def describe_network(network: str) -> str:
    """Return NCCL's word for a network as users call it; empty for none."""
    return _AS_USERS_CALL_IT.get(network, network)


def is_within_host(network: str) -> bool:
    """Whether that is no network, but a way between GPUs of one host."""
    return network in {"P2P", "SHM"}


class NetworkReader:
    """Reads from the bytes of a log, which come in pieces, what NCCL talks over."""

    def __init__(self) -> None:
        self._lines = LineBuffer(LINE_LIMIT)
        self._nccl = NetworkLines()

    @property
    def network(self) -> str:
        """What `NetworkLines` has of it; empty before."""
        return self._nccl.network

    def feed(self, data: bytes) -> None:
        """Take in further bytes of the log."""
        for line in self._lines.feed(data):
            if _SIGN.encode() in line:
                self._nccl.read_line(clean_line(line.decode(errors="replace")))
