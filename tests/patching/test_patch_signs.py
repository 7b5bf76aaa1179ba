"""What the source shows that it does: code counts, and neither comments nor strings nor what only looks like it."""

import pytest

from dflash_tui.engines.patching import text_edits
from dflash_tui.planning.patch_file import Fingerprint

METHOD = "class Backend:\n    @classmethod\n    def able(cls) -> bool:\n        {}\n"


def seen(source: str, has: str, in_class: str = "", *, returns: bool | None = None) -> bool:
    return text_edits.matches_fingerprint(Fingerprint("a.py", has, in_class, returns), {"a.py": source})


@pytest.mark.parametrize(
    ("body", "answers", "yes"),
    [
        ("return True", True, True),
        ('"""Words."""\n        return True', True, True),
        ("return cls.kernel.able", True, False),
        ("return False", False, False),
        ("pass", False, False),
        ("return False\n        return True", False, False),
    ],
)
def test_method_returning_false_counts_as_absent(body, answers, yes):
    """Nor is a placeholder; what it computes counts, but not as a plain yes."""
    source = METHOD.format(body)
    assert seen(source, "able", "Backend") is answers
    assert seen(source, "able", "Backend", returns=True) is yes
    assert not seen(source, "able", "Other")
    assert not seen(source + METHOD.format("return False"), "able", "Backend")


@pytest.mark.parametrize(
    ("source", "there"),
    [
        ("x = config.attention.wish", True),
        ("# attention.wish", False),
        ("x = 'attention.wish'", False),
        ("attention.wish = 1", False),
        ("from attention import wish", False),
        ("x = (attention", False),
    ],
)
def test_only_reading_code_counts_as_use(source, there):
    """Not a comment, a string, an import or an assignment; a broken or missing file shows nothing."""
    assert seen(source, "attention.wish") is there
    assert not text_edits.matches_fingerprint(Fingerprint("b.py", "x"), {"b.py": None})
