"""Pairs without a recipe: derive method, drafts, release and flags from two config.json; published pairs. Pure."""
