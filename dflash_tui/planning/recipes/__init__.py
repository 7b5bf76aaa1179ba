"""Recipes: what a file may say, how it is found and checked, and what it comes to on one kind of machine.

Knows nothing of plans: neither of requests, commands and memory, nor of what a plan may do or is advised.
"""
