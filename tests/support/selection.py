"""What the default selection leaves to the long one: the rest of a family of which it runs a few."""

from collections.abc import Container, Iterable

import pytest


def leave_to_long(values: Iterable[object], but: Container[object]) -> list[object]:
    """Return values of a parameter; those that are not among `but` are run by `-m long` alone."""
    return [value if value in but else pytest.param(value, marks=pytest.mark.long) for value in values]
