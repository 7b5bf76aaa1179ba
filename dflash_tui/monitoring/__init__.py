"""Watch a run: read its files, ask its server, record what the log does not say, play it again."""
