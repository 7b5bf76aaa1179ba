"""Turn a recipe, a request and a class of hardware into a plan: command, environment, patches, memory. Pure.

Imports `machine` for its types and `common`; starts no process and queries neither network nor driver.
"""
