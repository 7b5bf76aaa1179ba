"""Changes of vLLM's own files in an engine: as data, atomic, verified, undone at will."""
