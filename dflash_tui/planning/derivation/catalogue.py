"""The catalogue: published pairs of models with their sources, including pairs without a shipped recipe. Pure.

Its facts are shown and compared, never launched: a recipe is derived from the models' own files.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import GIB
from dflash_tui.common.untrusted_json import decode_json, register_type
from dflash_tui.machine.hardware import TYPICAL, Hardware
from dflash_tui.planning.field_types import Name, Tokens, VllmVersion
from dflash_tui.planning.methods import Method

SHIPPED = paths.PACKAGE_ROOT / "catalogue.json"
LARGEST = 4 << 20
# Activations, graphs and CUDA context in GiB; the share of the memory that vLLM gets, and the share of unified memory.
_BESIDE_GIB, _SHARE, _UNIFIED_SHARE = 2.4, 0.92, 0.8
_GB = 1e9
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

Fact = Annotated[str, Meta(min_length=1, max_length=400)]
Word = Annotated[str, Meta(max_length=200)]
Size = Annotated[float, Meta(gt=0, le=10_000)]
Gib = Annotated[float, Meta(ge=0, le=10_000)]
# A repository, or free text if its name is not confirmed; never a local folder or an option.
Repository = Annotated[str, Meta(max_length=200, pattern=r"^(?:[A-Za-z0-9][\w.-]*(?:[/ ][A-Za-z0-9][\w.-]*)*)?\Z")]


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the catalogue."""


class CatalogueModel(_Facts, frozen=True):
    """A target's repository in one precision."""

    repo: Word
    """The repository; text with spaces if its name is not confirmed."""
    precision: Word = ""
    """How its weights are stored, such as nvfp4."""
    size_gb: Size | None = None
    """The size of its files in 10^9 bytes."""
    source: Word = ""
    """The source, a key of `sources`."""

    @property
    def is_repository(self) -> bool:
        """Whether `repo` is a repository's name."""
        return bool(_REPOSITORY.fullmatch(self.repo))


class CatalogueTarget(_Facts, frozen=True):
    """A target in all its precisions."""

    architecture: Word
    variants: Annotated[tuple[CatalogueModel, ...], Meta(min_length=1, max_length=100)]
    licence: Word = ""
    gated: bool | None = None
    context: int | None = None
    """The longest request, in tokens."""
    kv_gib: Gib | None = None
    """GiB of KV cache for a request of 32768 tokens in 16 bits."""
    note: Fact | None = None


class CatalogueFigure(_Facts, frozen=True):
    """A published figure, and what it was measured on."""

    hardware: Word
    what: Word
    source: Word
    values: Annotated[tuple[float, ...], Meta(max_length=16)] = ()
    """One value, a range, or one value per workload of the note."""
    date: Word = ""
    vllm: Word = ""
    engine: Word = ""
    """The engine, if it is not a release of vLLM."""
    n: int | None = None
    temperature: float | None = None
    note: Fact | None = None


class CataloguePair(_Facts, frozen=True):
    """A target and a way to draft for it."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,64}/[a-z0-9._-]{1,64}$")]
    target: Name
    method: Method
    drafter: Repository = ""
    """The drafter's repository; empty if the method takes none, or the target's own head drafts."""
    tokens: Tokens | None = None
    """Drafts per step of the published command."""
    most_tokens: Tokens | None = None
    """The most tokens that fit into the drafter's block."""
    oldest_vllm: VllmVersion | None = None
    """The first release that runs the pair; None for 0.20.0 or older."""
    oldest_why: Fact | None = None
    drafter_arch: Word = ""
    drafter_size_gb: Size | None = None
    drafter_gib: Gib | None = None
    """GiB of the drafter's own KV cache for a request of 32768 tokens."""
    drafter_gated: bool | None = None
    drafter_licence: Word = ""
    rank: int | None = None
    """Its place in the order in which pairs deserve a recipe."""
    figures: Annotated[tuple[CatalogueFigure, ...], Meta(max_length=100)] = ()
    variants: Annotated[tuple[Fact, ...], Meta(max_length=100)] = ()
    bugs: Annotated[tuple[Fact, ...], Meta(max_length=100)] = ()
    sources: Annotated[tuple[Word, ...], Meta(max_length=100)] = ()
    unconfirmed: Annotated[tuple[Fact, ...], Meta(max_length=100)] = ()


class Catalogue(_Facts, frozen=True):
    """All known pairs, as of one day."""

    written: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
    sources: Annotated[dict[str, Fact], Meta(max_length=1000)]
    """Short name of a source -> what it stands for."""
    targets: Annotated[dict[Name, CatalogueTarget], Meta(max_length=2000)]
    pairs: Annotated[tuple[CataloguePair, ...], Meta(max_length=5000)]


register_type(Catalogue)
_DECODER = msgspec.json.Decoder(Catalogue)


def own_catalogue_file() -> Path:
    """Return the path of the user's catalogue, which replaces the shipped one."""
    return paths.data_folder() / "catalogue.json"


def load_catalogue() -> Catalogue:
    """Return the newer of the user's and the shipped catalogue; the shipped one if the user's is invalid."""
    shipped = _load_shipped()
    try:
        own = load_own_catalogue()
    except UsageError:
        return shipped
    return own if own and own.written >= shipped.written else shipped


def load_own_catalogue() -> Catalogue | None:
    """Return the user's catalogue, None without one; raise UsageError if it cannot be read, or is invalid."""
    path = own_catalogue_file()
    try:
        return decode_catalogue(private_files.read_file(path, LARGEST))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"ignoring {path}", evidence=error.strerror or str(error)) from None


@cache
def _load_shipped() -> Catalogue:
    return decode_catalogue(SHIPPED.read_bytes())


def decode_catalogue(data: bytes) -> Catalogue:
    """Return the catalogue in JSON data; raise UsageError if it is none."""
    try:
        catalogue = decode_json(data, _DECODER)
    except msgspec.MsgspecError as error:
        raise UsageError("not a catalogue of pairs", evidence=str(error)) from None
    lost = [pair.id for pair in catalogue.pairs if pair.target not in catalogue.targets]
    if lost:
        raise UsageError("not a catalogue of pairs", evidence=f"{lost[0]}: no target of that name")
    return catalogue


class Need(NamedTuple):
    """The memory that a launch needs for a request of 32768 tokens."""

    gib: float
    unknown: tuple[str, ...]
    """Parts of unknown size, left out of `gib`."""


def estimate_need(catalogue: Catalogue, pair: CataloguePair, model: CatalogueModel) -> Need | None:
    """Return the memory that a pair needs with one precision of its target; None without the size of the weights."""
    target = catalogue.targets[pair.target]
    if model.size_gb is None:
        return None
    parts = {"KV cache": target.kv_gib, "drafter": pair.drafter_size_gb if pair.drafter else 0.0}
    weights = (model.size_gb + (parts["drafter"] or 0.0)) * _GB / GIB
    whole = weights + (target.kv_gib or 0.0) + (pair.drafter_gib or 0.0) + _BESIDE_GIB
    return Need(whole, tuple(name for name, size in parts.items() if size is None))


def typical_budget(hardware: Hardware) -> float | None:
    """Return the GiB that vLLM may take on a class of machine; None if the class has no typical memory."""
    typical = TYPICAL.get(hardware)
    return budget_of(typical.memory_total, unified=typical.unified) if typical else None


def budget_of(memory_total: int, *, unified: bool) -> float:
    """Return the GiB of a GPU's memory that vLLM may take."""
    return memory_total / GIB * (_UNIFIED_SHARE if unified else _SHARE)


def list_fitting_models(catalogue: Catalogue, pair: CataloguePair, budget: float) -> Iterator[CatalogueModel]:
    """Yield the target's precisions whose known needs fit into `budget` GiB, in the catalogue's order."""
    for model in catalogue.targets[pair.target].variants:
        need = estimate_need(catalogue, pair, model)
        if model.is_repository and need and need.gib <= budget:
            yield model


def choose_model(catalogue: Catalogue, pair: CataloguePair, budget: float | None) -> CatalogueModel | None:
    """Return the precision to serve: the first that fits, else the first with a repository; None without one."""
    fitting = list_fitting_models(catalogue, pair, budget) if budget else iter(())
    named = (model for model in catalogue.targets[pair.target].variants if model.is_repository)
    return next(fitting, None) or next(named, None)


def find_pairs(catalogue: Catalogue, model: str) -> list[CataloguePair]:
    """Return the pairs of a repository or folder, sorted by rank.

    A repository is matched by its name; otherwise the longest target name that the model's name starts with is used.
    """
    last = model.rstrip("/").rpartition("/")[2].lower()
    repos = {variant.repo.lower(): name for name, target in catalogue.targets.items() for variant in target.variants}
    names = {repo.rpartition("/")[2]: name for repo, name in repos.items()}
    begins = max((name for name in catalogue.targets if last.startswith(name)), key=len, default=None)
    target = repos.get(model.lower()) or names.get(last) or begins
    return sort_by_rank(pair for pair in catalogue.pairs if pair.target == target)


def sort_by_rank(pairs: Iterable[CataloguePair]) -> list[CataloguePair]:
    """Return the pairs sorted by rank."""
    return sorted(pairs, key=lambda pair: pair.rank or 1000)
