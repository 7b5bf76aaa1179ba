"""The catalogue: pairs of models that others published, with sources, also those that no recipe is shipped for. Pure.

Facts of the catalogue are shown and compared, never launched: a recipe is derived from what the models say themselves.
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
# Activations, graphs and the context, and the share of the memory that vLLM is given, on unified memory a smaller one.
_BESIDE_GIB, _SHARE, _UNIFIED_SHARE = 2.4, 0.92, 0.8
_GB = 1e9
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)

Fact = Annotated[str, Meta(min_length=1, max_length=400)]
Word = Annotated[str, Meta(max_length=200)]
Size = Annotated[float, Meta(gt=0, le=10_000)]
Gib = Annotated[float, Meta(ge=0, le=10_000)]
# Or words, where its name is not confirmed; never a folder of this machine or an option.
Repository = Annotated[str, Meta(max_length=200, pattern=r"^(?:[A-Za-z0-9][\w.-]*(?:[/ ][A-Za-z0-9][\w.-]*)*)?\Z")]


class _Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A part of the catalogue."""


class CatalogueModel(_Facts, frozen=True):
    """A repository with a target in some precision."""

    repo: Word
    """The repository; a text with spaces where its name is not confirmed."""
    precision: Word = ""
    """How its weights are stored, such as nvfp4."""
    size_gb: Size | None = None
    """The size of its files in 10^9 bytes."""
    source: Word = ""
    """Who says so, by the names of `sources`."""

    @property
    def is_repository(self) -> bool:
        """Whether its name is known."""
        return bool(_REPOSITORY.fullmatch(self.repo))


class CatalogueTarget(_Facts, frozen=True):
    """A model that is served, in all its precisions."""

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
    """A figure that somebody published, with what it was measured on."""

    hardware: Word
    what: Word
    source: Word
    values: Annotated[tuple[float, ...], Meta(max_length=16)] = ()
    """One, a range, or one for each workload of the note."""
    date: Word = ""
    vllm: Word = ""
    engine: Word = ""
    """What served it where that is no release of vLLM."""
    n: int | None = None
    temperature: float | None = None
    note: Fact | None = None


class CataloguePair(_Facts, frozen=True):
    """A target with a way to draft for it."""

    id: Annotated[str, Meta(pattern=r"^[a-z0-9._-]{1,64}/[a-z0-9._-]{1,64}$")]
    target: Name
    method: Method
    drafter: Repository = ""
    """The drafter's repository; empty where the method has none, or the target's own head drafts."""
    tokens: Tokens | None = None
    """Drafts per step of the published command."""
    most_tokens: Tokens | None = None
    """As many as its block has room for."""
    oldest_vllm: VllmVersion | None = None
    """The first release that runs it; None where each from 0.20.0 on does."""
    oldest_why: Fact | None = None
    drafter_arch: Word = ""
    drafter_size_gb: Size | None = None
    drafter_gib: Gib | None = None
    """GiB of the drafter's own KV cache for a request of 32768 tokens."""
    drafter_gated: bool | None = None
    drafter_licence: Word = ""
    rank: int | None = None
    """Its place among those that are worth a recipe first."""
    figures: Annotated[tuple[CatalogueFigure, ...], Meta(max_length=100)] = ()
    variants: Annotated[tuple[Fact, ...], Meta(max_length=100)] = ()
    bugs: Annotated[tuple[Fact, ...], Meta(max_length=100)] = ()
    sources: Annotated[tuple[Word, ...], Meta(max_length=100)] = ()
    unconfirmed: Annotated[tuple[Fact, ...], Meta(max_length=100)] = ()


class Catalogue(_Facts, frozen=True):
    """All pairs that are known, as of a day."""

    written: Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\d$")]
    sources: Annotated[dict[str, Fact], Meta(max_length=1000)]
    """What the short names of sources stand for."""
    targets: Annotated[dict[Name, CatalogueTarget], Meta(max_length=2000)]
    pairs: Annotated[tuple[CataloguePair, ...], Meta(max_length=5000)]


register_type(Catalogue)
_DECODER = msgspec.json.Decoder(Catalogue)


def own_catalogue_file() -> Path:
    """Return the file of the catalogue that the user put in place of the shipped one."""
    return paths.data_folder() / "catalogue.json"


def load_catalogue() -> Catalogue:
    """Return the user's catalogue where it is the newer one, else the shipped one, also where it cannot be used."""
    shipped = _load_shipped()
    try:
        own = load_own_catalogue()
    except UsageError:
        return shipped
    return own if own and own.written >= shipped.written else shipped


def load_own_catalogue() -> Catalogue | None:
    """Return the catalogue that the user put in place of the shipped one; None without one."""
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
    """Return what the JSON of a catalogue says, each text as one clean line."""
    try:
        catalogue = decode_json(data, _DECODER)
    except msgspec.MsgspecError as error:
        raise UsageError("not a catalogue of pairs", evidence=str(error)) from None
    lost = [pair.id for pair in catalogue.pairs if pair.target not in catalogue.targets]
    if lost:
        raise UsageError("not a catalogue of pairs", evidence=f"{lost[0]}: no target of that name")
    return catalogue


class Need(NamedTuple):
    """The memory that a request of 32768 tokens needs with everything."""

    gib: float
    unknown: tuple[str, ...]
    """What of it is not known and left out, so that it may be more."""


def estimate_need(catalogue: Catalogue, pair: CataloguePair, model: CatalogueModel) -> Need | None:
    """Return the memory that a precision of the pair's target needs; None where its weights' size is not known."""
    target = catalogue.targets[pair.target]
    if model.size_gb is None:
        return None
    parts = {"KV cache": target.kv_gib, "drafter": pair.drafter_size_gb if pair.drafter else 0.0}
    weights = (model.size_gb + (parts["drafter"] or 0.0)) * _GB / GIB
    whole = weights + (target.kv_gib or 0.0) + (pair.drafter_gib or 0.0) + _BESIDE_GIB
    return Need(whole, tuple(name for name, size in parts.items() if size is None))


def typical_budget(hardware: Hardware) -> float | None:
    """Return the GiB that vLLM may take on a class of machine; None where nothing is typical of it."""
    typical = TYPICAL.get(hardware)
    return budget_of(typical.memory_total, unified=typical.unified) if typical else None


def budget_of(memory_total: int, *, unified: bool) -> float:
    """Return the GiB that vLLM may take of a GPU's memory."""
    return memory_total / GIB * (_UNIFIED_SHARE if unified else _SHARE)


def list_fitting_models(catalogue: Catalogue, pair: CataloguePair, budget: float) -> Iterator[CatalogueModel]:
    """Yield the precisions of the target that fit into `budget` GiB by what is known, in the catalogue's order."""
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
    """Return the pairs of a model by its repository or folder, the ones worth most first.

    A repository is known by its name; another, or a folder, by the target that its own name begins with.
    """
    last = model.rstrip("/").rpartition("/")[2].lower()
    repos = {variant.repo.lower(): name for name, target in catalogue.targets.items() for variant in target.variants}
    names = {repo.rpartition("/")[2]: name for repo, name in repos.items()}
    begins = max((name for name in catalogue.targets if last.startswith(name)), key=len, default=None)
    target = repos.get(model.lower()) or names.get(last) or begins
    return sort_by_rank(pair for pair in catalogue.pairs if pair.target == target)


def sort_by_rank(pairs: Iterable[CataloguePair]) -> list[CataloguePair]:
    """Return pairs, the ones worth most first."""
    return sorted(pairs, key=lambda pair: pair.rank or 1000)
