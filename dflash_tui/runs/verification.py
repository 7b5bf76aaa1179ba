"""The last functional check of each recipe on this machine, as a file of ours keeps it."""

import time
from enum import StrEnum

import msgspec

from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.untrusted_json import register_type


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
    records = [untrusted_json.read_own_json(path, Verification) for path in files]
    return {record.recipe: record for record in records if record}
