"""Apply patches to the files of an engine's vLLM and revert them: all or nothing, whatever kills the process.

Part of `engines`: imports `planning`, `machine` and `common`, and `runs` to see which servers use an engine.
"""
