"""The text of the catalogue: pairs as rows, as facts with sources, and as drafters for a model."""

from __future__ import annotations

import ast
import inspect
import json
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from dflash_tui.common.formatting import UNKNOWN
from dflash_tui.machine.gpus import Gpu, free_memory
from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.catalogue import Catalogue, CatalogueFigure, CatalogueModel, CataloguePair
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes import recipe
from dflash_tui.planning.recipes.recipe import Recipe

if TYPE_CHECKING:  # importing httpx would delay the panel's first paint
    from dflash_tui.engines.model_config import TreeDrafter

_OLDEST = "0.20.0"


class Place(NamedTuple):
    """The machine for which a pair is considered; any machine if no class is given."""

    hardware: Hardware | None = None
    budget: float | None = None
    """The GiB that vLLM may use."""


def choose_place(cards: Sequence[Gpu]) -> Place:
    """Return the GPU with the most free memory; any machine if there is none."""
    measured = [card for card in cards if card.memory_total]
    if not measured:
        return Place()
    card = max(measured, key=free_memory)
    return Place(card.hardware, catalogues.budget_of(card.memory_total or 0, unified=card.unified))


def format_need(catalogue: Catalogue, pair: CataloguePair, model: CatalogueModel | None) -> str:
    """Return the memory that a precision of the pair needs; `≥` if part of it is unknown."""
    need = catalogues.estimate_need(catalogue, pair, model) if model else None
    return f"{'≥ ' if need.unknown else ''}{need.gib:.1f} GiB" if need else UNKNOWN


def format_release(pair: CataloguePair) -> str:
    """Return the first release that runs a pair."""
    return pair.oldest_vllm or _OLDEST


def find_nearest_figure(pair: CataloguePair, hardware: Hardware | None) -> CatalogueFigure | None:
    """Return a published vLLM speed: on one GPU of this class, else on several, else the first of any."""
    speeds = [figure for figure in pair.figures if figure.values and "tok/s" in figure.what]
    speeds = [figure for figure in speeds if not figure.engine and (figure.n != 0 or pair.method is Method.NONE)]
    near = [figure for figure in speeds if hardware and figure.hardware.endswith(f"x {hardware.value}")]
    alone = (figure for figure in near if figure.hardware.startswith("1x "))
    return next(alone, None) or next(iter(near or speeds), None)


def format_figure(figure: CatalogueFigure) -> str:
    """Return a figure with its machine, conditions, publisher and date."""
    values = " to ".join(f"{value:g}" for value in figure.values)
    parts = [" ".join(filter(None, [values, figure.what])), figure.hardware]
    parts += [f"n={figure.n}"] if figure.n is not None else []
    parts += [f"T={figure.temperature:g}"] if figure.temperature is not None else []
    parts += [f"vLLM {figure.vllm}"] if figure.vllm else [figure.engine] if figure.engine else []
    return f"{', '.join(parts)} ({', '.join(filter(None, [figure.source, figure.date]))})"


def list_pair_facts(catalogue: Catalogue, pair: CataloguePair, place: Place) -> Iterator[tuple[str, str]]:
    """Yield the known facts of a pair as labels and texts."""
    target, model = catalogue.targets[pair.target], catalogues.choose_model(catalogue, pair, place.budget)
    yield "target", f"{model.repo if model else pair.target} ({', '.join(_describe_target(catalogue, pair))})"
    others = [f"{variant.repo} ({variant.precision or UNKNOWN})" for variant in target.variants if variant is not model]
    if others:
        yield "or", ", ".join(others)
    yield "method", pair.method.value
    if pair.drafter:
        about = [pair.drafter_arch, f"{pair.drafter_size_gb} GB" if pair.drafter_size_gb else "", pair.drafter_licence]
        yield "drafter", ", ".join(filter(None, [pair.drafter, *about, "gated" if pair.drafter_gated else ""]))
    most = f", at most {pair.most_tokens} by its block" if pair.most_tokens else ""
    yield "drafts", f"{UNKNOWN if pair.tokens is None else pair.tokens} per step as published{most}"
    yield "vLLM", f"≥ {format_release(pair)}{f': {pair.oldest_why}' if pair.oldest_why else ''}"
    yield "memory", f"{format_need(catalogue, pair, model)} for a request of 32768 tokens"
    for figure in pair.figures:
        yield "published", f"{format_figure(figure)}{f': {figure.note}' if figure.note else ''}"
    yield from (("unconfirmed", text) for text in pair.unconfirmed)
    yield from (("bug", text) for text in pair.bugs)
    yield from (("source", f"{name}: {catalogue.sources.get(name, name)}") for name in _list_sources(pair))
    yield "as of", catalogue.written


def _describe_target(catalogue: Catalogue, pair: CataloguePair) -> Iterator[str]:
    target = catalogue.targets[pair.target]
    yield target.architecture
    if target.licence:
        yield target.licence
    if target.gated:
        yield "gated"


def _list_sources(pair: CataloguePair) -> list[str]:
    return list(dict.fromkeys([*pair.sources, *(figure.source for figure in pair.figures)]))


def format_drafter(pair: CataloguePair) -> str:
    """Return a drafter of the named model, with the option that selects it."""
    option = shlex.join(["--drafter", pair.drafter] if pair.drafter else ["--method", pair.method])
    return f"{option} ({describe_drafter(pair)})"


def describe_drafter(pair: CataloguePair) -> str:
    """Return how a pair drafts, the first release that supports it, and a published speed."""
    tokens = "" if pair.tokens is None else f", {pair.tokens} per step"
    figure = find_nearest_figure(pair, None)
    published = f"; {format_figure(figure)}" if figure else ""
    return f"{pair.method}{tokens}, vLLM ≥ {format_release(pair)}{published}"


def format_tree_drafter(drafter: TreeDrafter) -> str:
    """Return a drafter from the hub's model tree, with the option that selects it."""
    return f"{shlex.join(['--drafter', drafter.repo])} ({describe_tree_drafter(drafter)})"


def describe_tree_drafter(drafter: TreeDrafter) -> str:
    """Return how a drafter from the hub's model tree drafts, and the first release that supports it."""
    requirements = (
        f"{drafter.method}, vLLM ≥ {drafter.oldest_vllm or _OLDEST}" if drafter.method else "its config is not open"
    )
    return f"{requirements}{', gated' if drafter.gated else ''}; no figures here"


def format_up_command(pair: CataloguePair, model: CatalogueModel) -> str:
    """Return the command that serves a pair without a recipe."""
    drafter = ["--drafter", pair.drafter] if pair.drafter else ["--method", pair.method]
    return shlex.join(["dflash-tui", "up", "--target", model.repo, *drafter])


def schema_text() -> str:
    """Return the JSON Schema of recipe files, as shipped."""
    schema = msgspec.json.schema(Recipe)
    fields = _field_texts()
    for name, part in schema["$defs"].items():
        part["description"] = " ".join(part["description"].split())
        for key, value in part.get("properties", {}).items():
            if text := fields.get((name, key)):
                value["description"] = text
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "dflash-tui recipe"}
    return json.dumps(head | schema, indent=1, sort_keys=False) + "\n"


def _field_texts() -> dict[tuple[str, str], str]:
    """Return the field docstrings of the recipe structs, by class and field, inherited fields included."""
    texts: dict[tuple[str, str], str] = {}
    for node in ast.parse(inspect.getsource(recipe)).body:
        if not isinstance(node, ast.ClassDef):
            continue
        for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
            texts |= {(node.name, field): text for (owner, field), text in texts.items() if owner == base}
        for field, text in pairwise(node.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                texts[node.name, ast.unparse(field.target)] = " ".join(str(text.value.value).split())
    return texts
