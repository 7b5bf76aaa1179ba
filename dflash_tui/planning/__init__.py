"""A recipe, a request and a class of hardware become a plan: command, environment, patches, memory. Pure.

Imports `machine` for its values and `common`; starts no process, asks no network and no driver.
"""
