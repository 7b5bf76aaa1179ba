"""Values become text and Markdown, for the command line and the panel alike. Pure.

Imports `experiments` and below; neither textual nor rich, and does no I/O.
"""
