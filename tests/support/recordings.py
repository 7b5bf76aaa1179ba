"""The recorded logs under `tests/data`, read as they were written, and recordings as `export` writes them."""

import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import DATA

FOLDER = DATA / "recordings"
RUNS = FOLDER.with_name("runs")
_TIMED = re.compile(r"^ *(\d+\.\d+) ?(.*)$")


def names() -> list[str]:
    """Return the names of all recordings, e.g. `cpu-vllm-0.32.0/dflash`."""
    return sorted(str(path.parent.relative_to(FOLDER)) for path in FOLDER.glob("*/*/server.log"))


def lines(name: str) -> Iterator[tuple[float, str]]:
    """Yield (seconds since launch, raw line); a line without seconds has those of the line before."""
    at = 0.0
    for line in (FOLDER / name / "server.log").read_text(encoding="utf-8").split("\n"):
        match = _TIMED.match(line)
        at = float(match[1]) if match else at
        yield at, match[2] if match else line


def raw(name: str) -> bytes:
    """Return the log as the server wrote it, without the recorded seconds."""
    return "\n".join(line for _, line in lines(name)).encode()


def metrics(name: str, which: str) -> str:
    """Return the body of /metrics at the `start` or the `end` of the recording."""
    return (FOLDER / name / f"metrics_{which}.txt").read_text(encoding="utf-8")


def said(name: str, words: str) -> float:
    """Return the last number that the recorded server said in `words`, a pattern with one group."""
    found = re.findall(words, raw(name).decode())
    return float(found[-1].replace(",", ""))


def packed(path: Path, parts: Mapping[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return path
