"""The last functional check of each recipe on this machine, as a file of ours keeps it."""

import time
from collections.abc import Iterable
from enum import StrEnum

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.events import YEAR_2100

_LARGEST = 1 << 16


class CheckResult(StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class FunctionalCheck(msgspec.Struct, frozen=True):
    """One check of a served pair, and what was seen."""

    name: str
    result: CheckResult
    detail: str


class Verification(msgspec.Struct, frozen=True):
    """What a recipe was seen to do on this machine."""

    recipe: str
    at: float
    """When, in seconds since the epoch."""
    vllm: str
    """The release that served it."""
    hardware: str
    """The class of the GPUs."""
    run: str
    """The run that was checked."""
    checks: tuple[FunctionalCheck, ...] = ()

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple(check.name for check in self.checks if check.result is CheckResult.FAILED)


register_type(Verification)
_decoder: msgspec.json.Decoder[Verification] = msgspec.json.Decoder(Verification)


def format_badge(verification: Verification) -> str:
    """Return when, and with which release, all that was checked was right."""
    day = time.strftime("%Y-%m-%d", time.localtime(verification.at))
    return f"verified here {day}, {verification.vllm}"


def record_verification(verification: Verification) -> None:
    """Keep a check in place of the one before."""
    folder = paths.verifications_folder()
    private_files.ensure_private_folder(folder)
    private_files.replace_private_file(folder / f"{verification.recipe}.json", msgspec.json.encode(verification))


def list_verifications() -> dict[str, Verification]:
    """Return the last check of each recipe by its name; what cannot be read is left out: it is made again."""
    try:
        files = [path for path in paths.verifications_folder().iterdir() if path.suffix == ".json"]
    except OSError:
        return {}
    read = [(path.name, record) for path in files for record in _read(path.name)]
    return {
        record.recipe: record for name, record in read if f"{record.recipe}.json" == name and 0 <= record.at < YEAR_2100
    }


def _read(name: str) -> Iterable[Verification]:
    path = paths.verifications_folder() / name
    try:
        yield untrusted_json.decode_json(private_files.read_file(path, _LARGEST), _decoder)
    except (OSError, msgspec.MsgspecError):
        return
