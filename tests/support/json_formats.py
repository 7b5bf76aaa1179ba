"""What `--json` prints, command by command: the types of its lines, and the JSON Schemas that tests make of them."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from dflash_tui import events
from dflash_tui.benchmark import chat, summary
from dflash_tui.benchmark.result_files import ImportedResult
from dflash_tui.benchmark.server import ServerSeen
from dflash_tui.cli import event_lines
from dflash_tui.cli.commands import logs
from dflash_tui.cli.commands.housekeeping import DiskItem
from dflash_tui.cli.commands.servers import PrunedRun
from dflash_tui.cli.json_lines import (
    AddedRecipe,
    CheckLine,
    LogText,
    PatchOutcome,
    RemovedEngine,
    StoppedServer,
    UnitText,
    UpdatedCatalogue,
    WrittenFile,
)
from dflash_tui.diagnosis.explanation import Explanation
from dflash_tui.diagnosis.postmortem import Postmortem
from dflash_tui.engines.environments import Engine
from dflash_tui.engines.inventory import EnvironmentContents
from dflash_tui.engines.patching.status import FileCheck, PatchStatus
from dflash_tui.experiments import design
from dflash_tui.experiments.analysis.report import ExperimentReport
from dflash_tui.experiments.run_report import RunReport
from dflash_tui.launch.recipe_trust import Ingredient
from dflash_tui.machine.gpus import GpuProbe
from dflash_tui.monitoring.foreign_server import FoundServer
from dflash_tui.monitoring.startup_history import RecordedStart
from dflash_tui.planning.derivation.catalogue import CatalogueModel, CataloguePair
from dflash_tui.planning.memory import MemoryEstimate
from dflash_tui.planning.plan import Plan
from dflash_tui.planning.recipes.recipe import Recipe
from dflash_tui.presentation import experiment_text
from dflash_tui.presentation.client_text import Endpoint
from dflash_tui.runs.verification import Verification


class ErrorLine(msgspec.Struct, tag_field="event", tag="error"):
    """Why a command failed, whatever else it prints."""

    what: str
    evidence: str
    do: str
    exit_code: int


class ServerLine(msgspec.Struct, omit_defaults=True):
    """A server."""

    run: str
    recipe: str
    status: str
    port: int
    pid: int
    age_s: float | None
    memory_bytes: int | None
    synthetic: str
    url: str
    model: str
    key_variable: str
    restarted_from: str = ""


class ClientLine(Endpoint, frozen=True, kw_only=True, omit_defaults=True):
    """How a program reaches a server."""

    run: str
    program: str = ""
    wiring: str = ""


class OrphanLine(msgspec.Struct):
    """An engine process that outlived its server."""

    pid: int
    name: str
    resident_bytes: int | None
    port: int | None


class PlanLine(Plan, frozen=True, kw_only=True):
    """A plan, with the memory that it needs."""

    fit: MemoryEstimate | None


class UnusableRecipe(msgspec.Struct):
    """A recipe that cannot be read."""

    name: str
    error: str


class CheckedRecipe(msgspec.Struct, omit_defaults=True):
    """What a recipe file holds, or what is wrong with it."""

    file: str
    error: str
    plans: int = -1
    ingredients: tuple[Ingredient, ...] = ()


class CatalogueLine(CataloguePair, frozen=True, kw_only=True):
    """A published pair, and what it needs on a machine."""

    written: str
    model: str | None
    need_gib: float | None
    need_without: tuple[str, ...]
    fits: bool | None
    models: tuple[CatalogueModel, ...]
    sources: dict[str, str]  # type: ignore[assignment] # where the pair has names alone
    command: str | None


class EngineLine(Engine, frozen=True, kw_only=True):
    """An engine, and what it takes on the disk."""

    bytes: int | None
    patches: tuple[str, ...]


class InspectedEngine(EnvironmentContents, frozen=True, kw_only=True):
    """What an engine holds, by its own Python."""

    folder: str
    adopted: bool
    patches: dict[str, str]
    base: str


class PatchLine(PatchStatus, frozen=True, kw_only=True):
    """How a patch stands in an engine."""

    title: str
    experimental: bool
    recipes: tuple[str, ...]
    link: str
    files: tuple[str, ...]
    engine: str


class UnusablePatch(msgspec.Struct):
    """A patch that cannot be read."""

    name: str
    state: str
    why: str


class ExperimentLine(msgspec.Struct):
    """An A/B or tune."""

    id: str
    recipe: str
    vary: str
    status: str
    boots_done: int
    boots: int
    made_at: float


class JsonFormat(NamedTuple):
    """What the lines of a command are."""

    version: int
    """Grows when a field is renamed or taken away, or means something else; new fields do not change it."""
    types: Sequence[Any]
    """The types that a line may be of."""


def _list_events(*modules: ModuleType) -> list[Any]:
    classes = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return [kind for kind in dict.fromkeys(classes) if issubclass(kind, events.Event) and kind is not events.Event]


_WATCHED = _list_events(events, event_lines, logs)
_MEASURED = [events.RequestDone, summary.LevelSummary]
_TRIED = [*_list_events(design, experiment_text), events.Preparing]
_VERSIONS = dict.fromkeys(
    (
        "ab", "attach", "bench", "engine adopt", "engine inspect", "engine install", "engine list", "patch apply",
        "patch revert", "patch status", "plan", "recipes add", "recipes check", "recipes import", "replay", "report",
        "service", "tune", "up", "verify --lossless",
    ),
    2,
)  # fmt: skip
# By command; the errors of all are `error`.
FORMATS: dict[str, JsonFormat] = {
    name: JsonFormat(_VERSIONS.get(name, 1), types)
    for name, types in {
        "error": [ErrorLine],
        "up": [*_WATCHED, *_MEASURED],
        "attach": _WATCHED,
        "replay": _WATCHED,
        "bench": [ServerSeen, *_MEASURED],
        "ab": _TRIED,
        "ab list": [ExperimentLine],
        "ab play": [WrittenFile],
        "tune": _TRIED,
        "tune keep": [WrittenFile],
        "verify": [Verification],
        "verify --lossless": _TRIED,
        "report": [ExperimentReport, RunReport, ImportedResult],
        "ps": [ServerLine, FoundServer],
        "runs": [ServerLine],
        "runs prune": [PrunedRun],
        "logs": [LogText],
        "stop": [StoppedServer],
        "why": [Postmortem, Explanation],
        "ps --for": [ClientLine],
        "chat": [chat.Turn],
        "stop --orphans": [OrphanLine],
        "runs history": [RecordedStart],
        "export": [WrittenFile],
        "service": [UnitText],
        "plan": [PlanLine],
        "doctor": [CheckLine],
        "gpus": [GpuProbe],
        "disk": [DiskItem],
        "recipes": [Recipe, UnusableRecipe],
        "recipes check": [CheckedRecipe],
        "recipes catalogue": [CatalogueLine],
        "recipes add": [AddedRecipe],
        "recipes import": [AddedRecipe],
        "recipes update": [UpdatedCatalogue],
        "recipes show": [Recipe],
        "recipes new": [WrittenFile],
        "engine list": [EngineLine],
        "engine install": [Engine, events.Preparing],
        "engine inspect": [InspectedEngine],
        "engine remove": [RemovedEngine],
        "engine adopt": [Engine],
        "patch status": [PatchLine, UnusablePatch],
        "patch diff": [dict[str, str]],
        "patch apply": [PatchOutcome],
        "patch revert": [PatchOutcome],
        "patch verify": [FileCheck],
    }.items()
}


def find_format(command: str) -> str:
    """Return the name of the format of a command and its action: that of the command where the action has none."""
    name = command if command in FORMATS else command.partition(" ")[0]
    return name if name in FORMATS else ""


def build_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a line of this format, or of a failure."""
    version, types = FORMATS[name]
    lines = list(dict.fromkeys([*types, ErrorLine]))
    parts, definitions = msgspec.json.schema_components(lines, ref_template="#/$defs/{name}")
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"dflash-tui:{name}:{version}"}
    return head | {"title": f"a line of dflash-tui {name} --json", "anyOf": list(parts), "$defs": definitions}
