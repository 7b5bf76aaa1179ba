"""From a request to a running server: plan, check, prepare, launch and stop it on this machine.

Imports `diagnosis` and below, and neither experiments nor screens.
"""
