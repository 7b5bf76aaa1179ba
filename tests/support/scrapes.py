"""What the reader of /metrics makes of a whole body at once."""

from __future__ import annotations

from dflash_tui.events import Counters
from dflash_tui.vllm_output.metrics import MetricsReader, Scrape
from tests.support.values import present


def parse_metrics(text: str) -> Scrape | None:
    """Return the values of a body, or None when it is not of a vLLM server."""
    reader = MetricsReader()
    reader.feed(text.encode(errors="replace"))
    return reader.result()


def parse_counters(text: str) -> Counters:
    """Return the counters in a body of a vLLM server."""
    return present(parse_metrics(text)).counters
