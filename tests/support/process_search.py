"""The command lines of processes, some of which end while they are read."""

from collections.abc import Iterable

import psutil


def read_command_line(process: psutil.Process) -> list[str]:
    """Return the words of a process; none where it has ended, or waits for its parent."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def find_processes(word: str, among: Iterable[psutil.Process] | None = None) -> list[psutil.Process]:
    """Return the processes of whose words one has `word` in it: among this one's descendants, or others."""
    if among is None:
        among = psutil.Process().children(recursive=True)
    return [each for each in among if any(word in each_word for each_word in read_command_line(each))]
