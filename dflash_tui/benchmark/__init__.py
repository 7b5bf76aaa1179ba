"""Send prompts to one server, measure each request, and sum up.

Imports `runs`, `planning`, `events` and `common`; knows nothing of experiments.
"""
