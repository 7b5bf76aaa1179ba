"""Asks a server for its /metrics, within limits of size, time, memory and work, whatever it answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_tui.common import bounded_http
from dflash_tui.vllm_output.metrics import MetricsReader, Scrape

if TYPE_CHECKING:
    import httpx


async def fetch_metrics(client: httpx.AsyncClient, url: str = "/metrics") -> Scrape:
    """Return the values of a server's /metrics.

    They are read in the event loop while they come, not in a thread, which the end of the program would wait for. What
    that costs counts as the work of the request; the answer of a real server takes 0.0005 s.

    Raises:
        bounded_http.BadResponse: the answer is not that of a vLLM server, or too large.
        httpx.HTTPError: there is no answer.
        ssl.SSLError: the encrypted connection broke.
        TimeoutError: it was not complete in time.
    """
    reader = MetricsReader()
    await bounded_http.feed_bounded(client, url, reader.feed, "/metrics")
    if (scrape := reader.result()) is None:
        raise bounded_http.BadResponse("/metrics has no counter of a vLLM server")
    return scrape
