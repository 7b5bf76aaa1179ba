"""The panel: a Textual front end. The only package that imports textual, rich and plotext.

Imports `presentation` and below, nothing of `cli`.
"""
