"""Helpers without knowledge of the domain: errors, formatting, paths, files, redaction, untrusted text.

Everybody may import it; it imports nothing of dflash_tui.
"""
