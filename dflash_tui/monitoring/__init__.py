"""Watch a run: read its files, ask its server, record what the log does not say, play it again.

Imports `benchmark`, `runs`, `run_state` and below; knows nothing of engines.
"""
