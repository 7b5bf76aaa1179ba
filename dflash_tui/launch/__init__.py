"""From a request to a running server: plan it here, check it, prepare it, launch it, stop it again.

Imports `diagnosis` and below; knows nothing of experiments and of screens.
"""
