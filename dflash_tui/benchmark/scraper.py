"""Asks a server for its /metrics, within limits of size, time, memory and work, whatever it answers."""

from __future__ import annotations

import time

import httpx

from dflash_tui.common import bounded_http
from dflash_tui.vllm_output.metrics import MetricsReader, Scrape

# Seconds of processor time for reading one answer. That of a real server takes 0.0005.
BUDGET = 0.25


async def fetch_metrics(client: httpx.AsyncClient, url: str = "/metrics") -> Scrape:
    """Return the values of a server's /metrics.

    They are read in the event loop while they come, not in a thread, which the end of the program would wait for.

    Raises:
        bounded_http.BadResponse: the answer is not that of a vLLM server, too large, or costs more than `BUDGET`.
        httpx.HTTPError: there is no answer.
        TimeoutError: it was not complete in time.
    """
    reader, spent = MetricsReader(), 0.0

    def take(piece: bytes) -> None:
        nonlocal spent
        began = time.thread_time()
        reader.feed(piece)
        spent += time.thread_time() - began
        if spent > BUDGET:
            raise bounded_http.BadResponse(f"/metrics: reading it takes more than {BUDGET} s of processor time")

    await bounded_http.feed_bounded(client, url, take, "/metrics")
    if (scrape := reader.result()) is None:
        raise bounded_http.BadResponse("/metrics has no counter of a vLLM server")
    return scrape
