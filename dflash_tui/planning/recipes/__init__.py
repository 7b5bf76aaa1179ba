"""Recipes: their files, how they are found and checked, and how they resolve on one kind of machine.

Imports nothing of plans: no requests, commands, memory, permissions or advice.
"""
