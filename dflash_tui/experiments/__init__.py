"""Experiments, A/Bs in the UI: their design, the driver that boots one arm after the other, and their folder.

Imports `launch` and below. `python -m dflash_tui.experiments ID` is the driver.
"""
