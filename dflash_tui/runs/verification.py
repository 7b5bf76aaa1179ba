"""The last functional check of each recipe on this machine, kept in a file."""

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
    """One check of a served pair: its result, and what was observed."""

    name: str
    result: CheckResult
    detail: str


class Verification(msgspec.Struct, frozen=True):
    """The verification of a recipe on this machine."""

    recipe: str
    at: float
    """When it was verified, in seconds since the epoch."""
    vllm: str
    """The vLLM release that served it."""
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
    """Return the date and the release of a passed verification."""
    day = time.strftime("%Y-%m-%d", time.localtime(verification.at))
    return f"verified here {day}, {verification.vllm}"


def record_verification(verification: Verification) -> None:
    """Keep a verification, replacing the recipe's previous one."""
    folder = paths.verifications_folder()
    private_files.ensure_private_folder(folder)
    private_files.replace_private_file(folder / f"{verification.recipe}.json", msgspec.json.encode(verification))


def list_verifications() -> dict[str, Verification]:
    """Return the last verification of each recipe by name, without those that cannot be read."""
    try:
        files = [path for path in paths.verifications_folder().iterdir() if path.suffix == ".json"]
    except OSError:
        return {}
    records = [untrusted_json.read_own_json(path, Verification) for path in files]
    return {record.recipe: record for record in records if record}
