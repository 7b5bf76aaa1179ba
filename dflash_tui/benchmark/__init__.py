"""Send prompts to one server, measure each request, and summarize them.

Imports `runs`, `planning`, `events` and `common`; does not know experiments.
"""
