"""Render values as text and Markdown, for the command line and the panel. Pure.

Imports `experiments` and below; neither textual nor rich, and does no I/O.
"""
