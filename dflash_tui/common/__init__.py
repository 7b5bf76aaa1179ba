"""Helpers without knowledge of the domain: errors, formatting, paths, files, redaction, untrusted text."""
