"""Values that may be absent, and are not."""

from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """Return a value that is there."""
    assert value is not None
    return value
