"""Events become the state of a run, and what follows from it: rates, alarms, stalls, estimates. Pure.

Imports `vllm_output`, `planning`, `events`, `machine` and `common`; reads no file and asks no server.
"""
