"""Boots become verdicts: how far arms are apart, what confounds that, when a slower start has paid back. Pure."""
