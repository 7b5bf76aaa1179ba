"""Parses samples of Prometheus' text format, each in time that grows with the length of its line only. Pure.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from typing import NamedTuple

_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)(?:[ \t]*(\{)|[ \t])")
# Nothing in here can match in two ways, so that a label that is none is given up after one look at each character.
_LABEL = re.compile(r'[ \t]*([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\]*(?:\\.[^"\\]*)*)"[ \t]*(,?)')
_LABELS_END = re.compile(r"[ \t]*\}")


class Sample(NamedTuple):
    """One sample: the name of its series, its labels and its value."""

    name: str
    labels: dict[str, str]
    """The labels as they are written: a backslash in a value still stands for what follows it."""
    value: float


def parse_sample(line: str) -> Sample | None:
    """Return the sample that `line` holds; None when it is none, as a comment or half a line. Timestamps are dropped.

    A line is taken as the format has it, while prometheus_client, which the tests compare this with, is laxer:
    it takes a name among the labels, too, and commas before them.
    """
    if (start := _NAME.match(line)) is None:
        return None
    at, labels = start.end(), dict[str, str]()
    if start[2]:
        separator = ","
        while separator and (label := _LABEL.match(line, at)):
            name, value, separator = label.groups()
            if name in labels:
                return None
            labels[name], at = value, label.end()
        if (end := _LABELS_END.match(line, at)) is None:
            return None
        at = end.end()
    figures = line[at:].split()
    if len(figures) not in {1, 2} or "_" in figures[0]:
        return None
    try:
        return Sample(start[1], labels, float(figures[0]))
    except ValueError:
        return None
