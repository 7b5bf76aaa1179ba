"""What the reader of /metrics makes of a whole body at once."""

from __future__ import annotations

from dflash_tui.events import Counters
from dflash_tui.vllm_output.metrics import MetricsReader, Scrape


def parse_metrics(text: str) -> Scrape | None:
    """Return the values of a body, or None when it is not of a vLLM server."""
    reader = MetricsReader()
    reader.feed(text.encode(errors="replace"))
    return reader.result()


def parse_counters(text: str) -> Counters | None:
    """Return the counters in a body; see `parse_metrics`."""
    scrape = parse_metrics(text)
    return scrape.counters if scrape else None
