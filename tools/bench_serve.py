"""Run by an engine's own Python: `vllm` with the words given, where `bench serve` reads its prompts without pandas.

An engine is installed without what vLLM's `bench` extra brings. Of that, a benchmark with prompts of one's own needs
one function of pandas, which reads a file of JSON lines; where pandas is there, it is used.

Usage: bench_serve.py bench serve OPTIONS...
"""

import argparse
import importlib
import importlib.util
import json
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


class Row(dict[str, Any]):
    """One line of the file."""

    def to_dict(self) -> dict[str, Any]:
        """Return what the line holds."""
        return dict(self)


class Rows:
    """The lines of a file, as far as they are looked at."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows
        self.columns = set(rows[0]) if rows else set()

    def iterrows(self) -> Iterator[tuple[int, Row]]:
        """Yield each line with its number."""
        yield from enumerate(self._rows)


class Lines:
    """Stands in for pandas."""

    @staticmethod
    def read_json(path_or_buf: str, *, lines: bool) -> Rows:
        """Return the JSON objects of a file, one per line."""
        if not lines:
            raise ValueError("only JSON lines are read here")
        with pathlib.Path(path_or_buf).open(encoding="utf-8") as file:
            return Rows([Row(json.loads(line)) for line in file if line.strip()])


def spelled(words: list[str], add_options: Callable[[argparse.ArgumentParser], object]) -> list[str]:
    """Return the words with the option that leaves prompts without a template as this release calls it."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser)
    usage = parser.format_usage()
    old, new = "--custom-skip-chat-template", "--skip-chat-template"
    return [old if word == new and old in usage else word for word in words]


if __name__ == "__main__":
    package = importlib.import_module("vllm.benchmarks.datasets")  # one file up to some release, a package since
    if importlib.util.find_spec("pandas") is None:
        sys.modules.get("vllm.benchmarks.datasets.datasets", package).pd = Lines  # type: ignore[attr-defined]
    sys.argv = ["vllm", *spelled(sys.argv[1:], package.add_dataset_parser)]
    importlib.import_module("vllm.entrypoints.cli.main").main()
