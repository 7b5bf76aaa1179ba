"""Parsers of what a vLLM server writes: its log and /metrics. Pure: bytes and text in, events and counters out.

Imports `events` and `common`; knows no recipe, no plan, no process and no network.
"""
