"""vLLM environments: install, inspect, adopt and patch them, and fetch the models that they serve.

Imports `runs`, `planning` and below; vLLM itself is never imported, only run by its own Python.
"""
