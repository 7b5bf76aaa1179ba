"""Any log, answer, patch, recording or record of a run: what its fuzz target promises, for inputs drawn at random."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import targets
from tests.fuzz.json_edits import EDITED
from tests.support import escapes

# Not derandomized: every run may find something new, and what it found is printed. FUZZ_TIMES=100 looks longer.
fuzz = settings(
    database=None,
    max_examples=60 * int(os.environ.get("FUZZ_TIMES", "1")),
)
ODD = [
    *(text.encode(errors="surrogateescape") for text in escapes.texts().values()), *escapes.raw().values(),
    b"\r", b"\0" * 9, b"x" * 5000, b"NaN", b"+Inf", b"-1", b"1e999", b"9" * 400, b"../x.py", b"/etc/x.py",
]  # fmt: skip
OF_JSON = {"recording", "run", "sse"}


@pytest.mark.parametrize("target", ["log", "metrics", "patch", "archive", *sorted(OF_JSON)])
@fuzz
@given(data=st.data())
def test_any_input_passes_its_fuzz_target(target, data):
    """What a fuzzer by coverage begins with, changed: pieces of bytes, or values of its JSON."""
    if target in OF_JSON and data.draw(st.booleans()):
        targets.TARGETS[target](bytes([EDITED]) + data.draw(st.binary(min_size=4, max_size=16)))
        return
    changed = data.draw(st.sampled_from(list(targets.seeds(target))))
    for _ in range(data.draw(st.integers(1, 4))):
        begin, length = data.draw(st.integers(0, len(changed))), data.draw(st.integers(0, 40))
        changed = changed[:begin] + data.draw(st.binary(max_size=30) | st.sampled_from(ODD)) + changed[begin + length :]
    targets.TARGETS[target](changed)
