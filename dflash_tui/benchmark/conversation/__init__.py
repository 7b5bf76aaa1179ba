"""Conversations with a server: what is said, what a served pair has to do, and how likely tokens are."""
