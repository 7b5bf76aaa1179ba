"""What uv says of a file whose hash is not the expected one."""

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
