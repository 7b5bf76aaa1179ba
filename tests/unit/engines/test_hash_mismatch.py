"""What uv says of a file whose hash is not the expected one."""

import time

import pytest

from dflash_tui.engines.uv_process import explain_mismatch

SAID = """  × Failed to read `torch==2.13.0`
  ╰─▶ Hash mismatch for `torch==2.13.0`

      Expected:
        sha256:aa
        sha256:bb

      Computed:
        sha256:cc
"""


@pytest.mark.parametrize("installed_before", [False, True])
def test_a_mismatch_names_the_package_and_both_hashes(tmp_path, installed_before):
    recorded = tmp_path / "locked.txt"
    if installed_before:
        recorded.touch()
    error = explain_mismatch(SAID, recorded)
    assert error is not None
    assert error.evidence == "expected sha256:aa or sha256:bb, got sha256:cc"
    assert "torch==2.13.0" in error.what
    assert (str(recorded) in error.hint) is installed_before


@pytest.mark.parametrize("text", ["", "Hash mismatch for `a`", SAID.partition("Computed")[0], SAID[:-20]])
def test_another_text_is_none(tmp_path, text):
    assert explain_mismatch(text, tmp_path / "none") is None


HOSTILE = {
    "blanks": "Hash mismatch for `a`" + " \n" * 50_000,
    "blanks after the word": "Hash mismatch for `a`\n Expected:" + " \n" * 50_000,
    "words": "Hash mismatch for `a`\n Expected:\n x" + " Computed: \n y" * 8_000,
    "hashes": "Hash mismatch for `a` Expected: x:y Computed: " + "a:a" * 33_000 + "!",
    "beginnings": "Hash mismatch for `" * 5_000,
    "mismatches": "Hash mismatch for `a`\n Expected: b " * 3_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_text_takes_no_time(tmp_path, name):
    """By a pattern over all of it, blanks alone would take hours; the bound is a thousand times of what it takes."""
    began = time.process_time()
    explain_mismatch(HOSTILE[name], tmp_path / "none")
    assert time.process_time() - began < 5
