"""Experiments (A/Bs in the UI): their design, their folders, and the driver that boots the arms in turn.

Imports `launch` and below. `python -m dflash_tui.experiments ID` is the driver.
"""
