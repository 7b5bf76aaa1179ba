"""Dialogs: opened over a screen, they return a value."""
