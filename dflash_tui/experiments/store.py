"""The folders of experiments (see `design`): create, list, find and read them."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from dflash_tui.benchmark import suites
from dflash_tui.benchmark.prompts import Suite
from dflash_tui.common import paths, private_files, untrusted_json
from dflash_tui.common.errors import DflashError, UsageError
from dflash_tui.common.private_files import find_in_folders, load_each, try_lock
from dflash_tui.common.untrusted_json import LineBuffer
from dflash_tui.events import Event, encode
from dflash_tui.experiments import progress
from dflash_tui.experiments.analysis import verdict
from dflash_tui.experiments.analysis.answers import add_output_checks
from dflash_tui.experiments.analysis.report import RULES, ExperimentReport
from dflash_tui.experiments.design import Design, Happened, KeptAnswer
from dflash_tui.experiments.progress import Progress
from dflash_tui.machine import processes
from dflash_tui.planning.plan import decode_record, upgrade_label, upgrade_options, upgrade_record

_DESIGN, EVENTS, _DRIVER, LOG, REPORT = "experiment.json", "events.jsonl", "driver.json", "driver.log", "report.json"
_ANSWERS = "answers.jsonl"
# For all answers of an experiment; 80 answers of 2,048 tokens take about 1 MB.
MOST_ANSWERS = 64 << 20
# In earlier releases a boot is one event with all its requests, about 500 bytes each.
LONGEST_EVENT = 64 << 20
_LARGEST_FILE = 256 << 20
_PIECE = 1 << 20


class Driver(msgspec.Struct, frozen=True):
    """The driver process of an experiment; pid and identity together are unique."""

    pid: int
    born: str


_decoder: msgspec.json.Decoder[Happened] = msgspec.json.Decoder(Happened)
_designs: msgspec.json.Decoder[Design] = msgspec.json.Decoder(Design)
_drivers: msgspec.json.Decoder[Driver] = msgspec.json.Decoder(Driver)
_reports: msgspec.json.Decoder[ExperimentReport] = msgspec.json.Decoder(ExperimentReport)
_answers: msgspec.json.Decoder[KeptAnswer] = msgspec.json.Decoder(KeptAnswer)


def experiment_folder(identity: str) -> Path:
    """Return the folder of an experiment."""
    return paths.experiments_folder() / identity


def load_experiment_suite(design: Design) -> Suite:
    """Return the prompts of an experiment; raise UsageError if its suite has changed or is missing."""
    suite = suites.load_suite(design.suite)
    if suite.digest != design.digest:
        raise UsageError(f"the suite {suite.name} has changed since {design.id} began", hint="begin a new A/B")
    return suite


def count_measured_requests(design: Design) -> int:
    """Return the number of measured requests per boot; 0 if the suite is missing or has changed."""
    if design.measures_start:
        return 0
    return _count_requests(design.suite, design.digest, design.rounds, design.concurrency, by_kind=design.by_kind)


@lru_cache(maxsize=32)
def _count_requests(name: str, digest: str, rounds: int, concurrency: tuple[int, ...], *, by_kind: bool) -> int:
    try:
        suite = suites.load_suite(name)
    except DflashError:
        return 0
    parts = suite.split_kinds() if by_kind else (suite,)
    count = sum(part.requests * part.rounds(rounds, streams) for streams in concurrency for part in parts)
    return count if suite.digest == digest else 0


def create_experiment(design: Design) -> Path:
    """Create the folder of an experiment, which must not exist, write the design into it, and return it."""
    folder = experiment_folder(design.id)
    try:
        private_files.make_private_folder(folder)
        write_json(folder / _DESIGN, design)
    except FileExistsError:
        hint = "run the command again: it gets another name"
        raise DflashError(f"experiment {design.id} already exists", hint=hint) from None
    except OSError as error:
        raise DflashError(f"cannot create {folder}", evidence=str(error)) from None
    return folder


def make_experiment_id(recipe: str, now: float) -> str:
    """Return an unused id made of the time and the recipe."""
    stamp = f"{time.strftime('%Y%m%d-%H%M%S', time.localtime(now))}-{recipe}"
    names = (stamp, *(f"{stamp}-{number}" for number in range(2, 100)))
    return next(name for name in names if not experiment_folder(name).exists())


def write_json(path: Path, value: msgspec.Struct) -> None:
    """Write a value as JSON, atomically."""
    private_files.replace_private_file(path, msgspec.json.format(msgspec.json.encode(value), indent=1))


def _load_design(path: Path) -> Design:
    try:
        design = decode_record(private_files.read_file(path, _LARGEST_FILE), _designs, _upgrade_design)
    except (OSError, msgspec.MsgspecError) as error:
        why = str(error.strerror if isinstance(error, OSError) else error)
        raise UsageError(f"its {_DESIGN} cannot be read: {why}") from None
    if design.id != path.parent.name:  # the id decides which folder is written and removed
        raise UsageError(f"its {_DESIGN} is another experiment's")
    return design


def decode_report(data: bytes) -> ExperimentReport:
    """Return the report in `report.json` or in another user's file; raise MsgspecError if it is invalid."""
    return decode_record(data, _reports, _upgrade_report)


def _upgrade_design(fields: Any) -> Any:
    """Return the fields of a design; in earlier releases arms had options instead of a request."""
    if not isinstance(fields, dict) or not isinstance(fields.get("arms"), list):
        return fields
    label = fields.get("synthetic")
    label_field = {"synthetic": upgrade_label(label)} if isinstance(label, str) else {}
    return {**fields, **label_field, "arms": [_upgrade_arm(arm) for arm in fields["arms"]]}


def _upgrade_arm(fields: Any) -> Any:
    arm = upgrade_record(fields)
    if isinstance(arm, dict) and "options" in arm:
        arm["request"] = upgrade_options(arm.pop("options"))
    return arm


def _upgrade_report(fields: Any) -> Any:
    return {**fields, "design": _upgrade_design(fields.get("design"))} if isinstance(fields, dict) else fields


def list_experiments() -> list[Design]:
    """Return the readable designs of all experiments, oldest first."""
    return sorted(_load_designs()[0].values(), key=lambda design: design.made_at)


def list_broken_experiments() -> dict[str, str]:
    """Return the experiments whose design cannot be read, each with the reason."""
    return _load_designs()[1]


def _load_designs() -> tuple[dict[str, Design], dict[str, str]]:
    return load_each(find_in_folders(paths.experiments_folder(), _DESIGN), _load_design)


def find_experiment(name: str | None = None) -> Design:
    """Return the experiment with this id, recipe or id prefix; by default a running one, else the newest."""
    designs = list_experiments()
    if name is not None and (why := list_broken_experiments().get(name)):
        raise UsageError(f"ignoring {experiment_folder(name)}: {why}")
    if not designs:
        raise UsageError("no experiment yet", hint="dflash-tui ab RECIPE starts one")
    if name is None:
        return next((design for design in reversed(designs) if find_driver(experiment_folder(design.id))), designs[-1])
    exact = [design for design in designs if design.id == name]
    if exact := exact or [design for design in designs if design.recipe == name]:
        return exact[-1]
    fitting = [design for design in designs if name and design.id.startswith(name)]
    if len(fitting) == 1:
        return fitting[0]
    what = f"'{name}' matches {len(fitting)} experiments" if fitting else f"no experiment called '{name}'"
    raise UsageError(what, hint="dflash-tui ab list shows them")


@contextmanager
def hold_driver_lock(design: Design) -> Iterator[None]:
    """Hold the lock of an experiment's driver; raise UsageError if another process holds it."""
    with open(experiment_folder(design.id) / "driver.lock", "wb", opener=private_files.open_private) as lock:
        if not try_lock(lock.fileno()):
            raise UsageError(f"{design.id} is already running", hint=f"dflash-tui ab attach {design.id}")
        yield


def find_driver(folder: Path) -> Driver | None:
    """Return the process that currently drives the experiment in `folder`, or None."""
    try:
        driver = untrusted_json.decode_json(private_files.read_file(folder / _DRIVER, 1 << 16), _drivers)
    except (OSError, msgspec.MsgspecError):
        return None
    return driver if driver.born and processes.read_process_identity(driver.pid) == driver.born else None


def record_driver(folder: Path) -> None:
    """Record this process as the driver of the experiment in `folder`."""
    write_json(folder / _DRIVER, Driver(os.getpid(), processes.read_process_identity(os.getpid())))


def append_event(folder: Path, event: Event) -> None:
    """Append an event; readers skip a half-written line before it."""
    private_files.append_line(folder / EVENTS, encode(event), durable=True)


def read_events(folder: Path) -> list[Happened]:
    """Return the recorded events; invalid lines, such as a half-written last one, are skipped."""
    lines, events = LineBuffer(LONGEST_EVENT), list[Happened]()
    for piece in read_event_pieces(folder, 0):
        events += [event for line in lines.feed(piece) if line and (event := decode_event(line))]
    last = decode_event(lines.unfinished_line)
    return [*progress.join_requests([*events, last] if last else events)]


def read_event_pieces(folder: Path, begin: int) -> Iterator[bytes]:
    """Yield the events file from offset `begin`, up to 256 MiB, more than any experiment writes."""
    try:
        with (folder / EVENTS).open("rb") as file:
            file.seek(begin)
            while file.tell() < _LARGEST_FILE and (piece := file.read(_PIECE)):
                yield piece
    except OSError:
        return


def decode_event(line: bytes) -> Happened | None:
    """Return the event of one line, or None if it is invalid."""
    try:
        return untrusted_json.decode_json(line, _decoder)
    except msgspec.MsgspecError:
        return None


def append_answer(folder: Path, answer: KeptAnswer) -> bool:
    """Append an answer; return False if the limit for the experiment is reached."""
    path, line = folder / _ANSWERS, msgspec.json.encode(answer)
    if path.exists() and path.stat().st_size + len(line) + 2 > MOST_ANSWERS:
        return False
    private_files.append_line(path, line)
    return True


def read_answers(folder: Path) -> list[KeptAnswer]:
    """Return the kept answers; invalid lines, such as a half-written last one, are skipped."""
    try:
        lines = private_files.read_file(folder / _ANSWERS, MOST_ANSWERS).split(b"\n")
    except OSError:
        return []
    answers = []
    for line in lines:
        with suppress(msgspec.MsgspecError):
            answers.append(untrusted_json.decode_json(line, _answers))
    return answers


def read_report(folder: Path) -> ExperimentReport | None:
    """Return the report of a finished experiment, judged again if its rules are outdated, or None."""
    try:
        report = decode_report(private_files.read_file(folder / REPORT, _LARGEST_FILE))
    except (OSError, msgspec.MsgspecError):
        return None
    if report.rules == RULES:
        return report
    judged = add_output_checks(verdict.build_report(report.design, report.boots), read_answers(folder))
    # A tune made its choice before its last boots, by the rules of that time.
    return msgspec.structs.replace(judged, tune=report.tune)


def read_report_so_far(folder: Path) -> ExperimentReport:
    """Return the report of an experiment; for an unfinished one its boots so far, without verdicts."""
    if report := read_report(folder):
        return report
    progress = read_progress(folder)
    return ExperimentReport(progress.design, progress.boots, (), complete=False)


def remove_experiment(design: Design) -> None:
    """Delete the folder of an experiment that no driver runs; its runs are kept."""
    folder = experiment_folder(design.id)
    if find_driver(folder):
        raise UsageError(f"{design.id} is running", hint=f"dflash-tui ab stop {design.id}")
    shutil.rmtree(folder)


def read_progress(folder: Path) -> Progress:
    """Return the progress of the experiment in `folder`; raise UsageError if its design cannot be read."""
    try:
        design = _load_design(folder / _DESIGN)
    except UsageError as error:
        hint = "dflash-tui ab list shows them"
        raise UsageError(f"{folder} is not an experiment", evidence=str(error), hint=hint) from None
    due, driven = count_measured_requests(design), find_driver(folder) is not None
    return progress.fold_progress(design, read_events(folder), due=due, driven=driven, now=time.time())
