"""Pairs without a recipe: what two config.json say -> method, drafts, release, flags; what others published. Pure."""
