"""The states of patches in an engine's files, and the engines that are made with patches."""
