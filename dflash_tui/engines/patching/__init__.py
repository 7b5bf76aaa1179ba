"""Change the files of an engine's vLLM and undo it: all of a change or nothing of it, whatever ends the process."""
