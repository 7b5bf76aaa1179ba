"""Version numbers as packages have them, from texts that anybody may have written."""

from packaging.version import Version


def parse_version(text: str) -> Version | None:
    """Return a version; None for a text that is none by PEP 440, or has a number of more digits than Python reads."""
    try:
        return Version(text)
    except ValueError:  # of which packaging's InvalidVersion is one
        return None
