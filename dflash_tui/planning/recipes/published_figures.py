"""What others measured of a recipe, nearest to a launch first, each with the set-up that it is of. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dflash_tui.machine.hardware import Hardware
from dflash_tui.planning.methods import Method
from dflash_tui.planning.recipes.recipe import Mode, PublishedFigures, Recipe

_MOST_OF_OTHER_CLASSES = 3


class ExpectedFigures(PublishedFigures, frozen=True, kw_only=True):
    """Published figures beside a launch."""

    set_up: str = ""
    """What they are of, where that is not what is launched; empty for figures of the same."""


def list_expected(
    recipe: Recipe, hardware: Hardware, *, profile: str, variant: str, method: Method, mode: Mode, tokens: int
) -> tuple[ExpectedFigures, ...]:
    """Return the published figures of a recipe, those that are most like the launch first.

    They are those of the class of hardware, and where it has no speeds, the nearest ones of other classes.

    Args:
        recipe: The recipe.
        hardware: The class of hardware.
        profile: The profile.
        variant: The variant; empty without one.
        method: How tokens are drafted.
        mode: Eager, graphs or compile.
        tokens: How many tokens are drafted per step.
    """

    def rate(kind: Hardware, figures: PublishedFigures) -> tuple[int, ExpectedFigures]:
        same_method = _has_method(figures, recipe, method)
        differs = (
            kind is not hardware,
            not same_method,
            bool(figures.target) or figures.variant != variant,
            _count_tokens(figures, recipe, kind) != tokens and same_method and method is not Method.NONE,
            figures.profile != profile and bool(recipe.profiles),
            figures.mode not in {None, mode},
        )
        distance = sum(weight for weight, other in zip((32, 16, 8, 4, 2, 1), differs, strict=True) if other)
        set_up = ", ".join(_describe(recipe, kind, figures, variant)) if distance else ""
        fields = {name: getattr(figures, name) for name in PublishedFigures.__struct_fields__}
        return distance, ExpectedFigures(**fields, set_up=set_up)

    def rank(classes: Iterable[Hardware]) -> list[ExpectedFigures]:
        rated = [rate(kind, figures) for kind in sorted(classes) for figures in recipe.hardware[kind].expected]
        return [figures for _, figures in sorted(rated, key=lambda pair: pair[0])]

    here = rank({hardware} & recipe.hardware.keys())
    if any(_has_speed(figures) for figures in here):
        return tuple(here)
    elsewhere = [figures for figures in rank(recipe.hardware.keys() - {hardware}) if _has_speed(figures)]
    return (*here, *elsewhere[:_MOST_OF_OTHER_CLASSES])


def _count_tokens(figures: PublishedFigures, recipe: Recipe, kind: Hardware) -> int:
    return figures.tokens or recipe.hardware[kind].num_speculative_tokens or recipe.num_speculative_tokens


def _has_speed(figures: PublishedFigures) -> bool:
    return bool(figures.tok_s or figures.baseline_tok_s or figures.acceptance or figures.acceptance_length)


def _has_method(figures: PublishedFigures, recipe: Recipe, method: Method) -> bool:
    """Whether figures are of the method; a launch without speculation is compared with the speeds without it."""
    if method is Method.NONE:
        return bool(figures.baseline_tok_s) or not figures.tok_s
    return (figures.method or recipe.method) is method


def _describe(recipe: Recipe, kind: Hardware, figures: PublishedFigures, variant: str) -> Iterator[str]:
    """Yield the words that say what figures are of; that it was no variant, where one is launched."""
    if recipe.profiles.keys() - {figures.profile}:
        yield f"{figures.profile} profile"
    if figures.method and figures.method is not recipe.method:
        yield "no speculation" if figures.method is Method.NONE else figures.method.value
    if figures.tokens:
        yield f"n={figures.tokens}"
    if figures.variant or variant:
        yield f"variant {figures.variant}" if figures.variant else "no variant"
    if figures.mode:
        yield figures.mode.value
    yield kind.value
    if figures.target:
        yield figures.target
