"""The states of patches in an engine's files, and engines made with patches."""
