"""What can lie where a file should be: to open it waits for ever, does something, or leads to another file."""

import os
import socket
from collections.abc import Callable, Mapping
from pathlib import Path


def _bind_socket(path: Path) -> None:
    before = Path.cwd()
    os.chdir(path.parent)  # the name of a socket may have 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.chdir(before)


ODD_FILES: Mapping[str, Callable[[Path], None]] = {
    "fifo": os.mkfifo,
    "socket": _bind_socket,
    "folder": Path.mkdir,
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link to a file": lambda path: path.symlink_to("/etc/passwd"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
}
