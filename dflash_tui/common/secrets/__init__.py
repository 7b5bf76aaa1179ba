"""Secrets: where the user's own are, what looks like one, and how they are left out of what is written."""
