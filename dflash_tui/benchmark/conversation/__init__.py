"""Conversations with a server: what is said, and what a served pair has to do."""
