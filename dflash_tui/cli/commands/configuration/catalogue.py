"""`recipes catalogue`: pairs that others published, whether a recipe is shipped for them or not."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import msgspec

from dflash_tui.cli.console import print_data, print_json, print_status, print_table, terminal_width
from dflash_tui.common.errors import UsageError
from dflash_tui.common.formatting import UNKNOWN, fold_line, pluralize, suggest_nearest
from dflash_tui.machine import nvml
from dflash_tui.machine.hardware import TYPICAL, parse_class
from dflash_tui.planning.derivation import catalogue as catalogues
from dflash_tui.planning.derivation.catalogue import Catalogue, CataloguePair
from dflash_tui.presentation import recipe_text
from dflash_tui.presentation.recipe_text import Place

_HEADER = ("PAIR", "METHOD", "N", "VLLM", "NEEDS", "PUBLISHED")


def show_catalogue(args: argparse.Namespace) -> int:
    """Print the pairs, those of a method, that fit or that may fit; or what is known of one."""
    try:
        catalogues.load_own_catalogue()
    except UsageError as error:
        print_status(f"! {error}")
    catalogue, place = catalogues.load_catalogue(), _choose_place(args.gpu, needed=args.fits or args.unknown)
    listed = [pair for pair in catalogue.pairs if args.method in {None, "", pair.method.value}]
    unknown: list[CataloguePair] = []
    if args.fits or args.unknown:
        unknown = [pair for pair in listed if not _fits(catalogue, pair, place) and _may_fit(catalogue, pair)]
    if args.pair:
        pairs = [_find_pair(catalogue, args.pair)]
    elif args.unknown:
        pairs = unknown
    else:
        pairs = [pair for pair in listed if not args.fits or _fits(catalogue, pair, place)]
    if args.json:
        for pair in pairs:
            print_json(_describe(catalogue, pair, place))
    elif args.pair:
        _print_pair(catalogue, pairs[0], place)
    else:
        rows = [_row(catalogue, pair, place) for pair in pairs]
        print_table(_HEADER, rows, right=(2, 4), drop=("METHOD",))
        print_status(
            f"as of {catalogue.written}, published by others; dflash-tui recipes catalogue PAIR has the sources"
        )
        if args.fits and unknown and not args.unknown:
            print_status(f"{pluralize(len(unknown), 'pair')} of unknown size left out; they are listed by:")
            print_status(_format_unknown_command(args))
    return 0


def _choose_place(name: str | None, *, needed: bool) -> Place:
    """Return the class that was named, else the GPU here with the most free memory.

    Raises:
        UsageError: nothing is typical of the class, or one is needed and there is none.
    """
    if name:
        kind = parse_class(name)
        if kind is None or kind not in TYPICAL:
            raise UsageError(f"the memory of '{name}' is not known", hint=f"available: {', '.join(TYPICAL)}")
        return Place(kind, catalogues.typical_budget(kind))
    place = recipe_text.choose_place(nvml.probe_gpus().gpus)
    if needed and place.budget is None:
        raise UsageError("this machine has no GPU to check against", hint=f"--gpu CLASS, one of {', '.join(TYPICAL)}")
    return place


def _find_pair(catalogue: Catalogue, name: str) -> CataloguePair:
    pairs = {pair.id: pair for pair in catalogue.pairs}
    if name not in pairs:
        hint = suggest_nearest(name, pairs) or "dflash-tui recipes catalogue lists them"
        raise UsageError(f"no pair called '{name}' in the catalogue", hint=hint)
    return pairs[name]


def _fits(catalogue: Catalogue, pair: CataloguePair, place: Place) -> bool:
    return place.budget is not None and any(catalogues.list_fitting_models(catalogue, pair, place.budget))


def _may_fit(catalogue: Catalogue, pair: CataloguePair) -> bool:
    """Whether nobody knows what one of the precisions of the pair's target weighs."""
    return any(
        catalogues.estimate_need(catalogue, pair, variant) is None
        for variant in catalogue.targets[pair.target].variants
    )


def _format_unknown_command(args: argparse.Namespace) -> str:
    """Return the command that lists the pairs that are left out because nobody knows whether they fit."""
    options = [word for name in ("gpu", "method") if (value := getattr(args, name)) for word in (f"--{name}", value)]
    return shlex.join(["dflash-tui", "recipes", "catalogue", "--unknown", *options])


def _row(catalogue: Catalogue, pair: CataloguePair, place: Place) -> tuple[str, ...]:
    model = catalogues.choose_model(catalogue, pair, place.budget)
    figure = recipe_text.find_nearest_figure(pair, place.hardware)
    return (
        pair.id,
        pair.method.value,
        UNKNOWN if pair.tokens is None else str(pair.tokens),
        recipe_text.format_release(pair),
        recipe_text.format_need(catalogue, pair, model),
        recipe_text.format_figure(figure) if figure else UNKNOWN,
    )


def _describe(catalogue: Catalogue, pair: CataloguePair, place: Place) -> dict[str, Any]:
    model = catalogues.choose_model(catalogue, pair, place.budget)
    need = catalogues.estimate_need(catalogue, pair, model) if model else None
    return {
        **msgspec.to_builtins(pair),
        "written": catalogue.written,
        "model": model.repo if model else None,
        "need_gib": round(need.gib, 1) if need else None,
        "need_without": need.unknown if need else (),
        "fits": _fits(catalogue, pair, place) if place.budget else None,
        "models": catalogue.targets[pair.target].variants,
        "sources": {name: catalogue.sources.get(name, name) for name in pair.sources},
        "command": recipe_text.format_up_command(pair, model) if model else None,
    }


def _print_pair(catalogue: Catalogue, pair: CataloguePair, place: Place) -> None:
    for name, text in recipe_text.list_pair_facts(catalogue, pair, place):
        print_data(fold_line(f"{name:11}  {text}", terminal_width(), hang=13))
    if model := catalogues.choose_model(catalogue, pair, place.budget):
        print_status(recipe_text.format_up_command(pair, model))
