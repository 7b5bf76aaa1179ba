"""`ab play`: pictures that show two arms write the same answer."""

from xml.etree import ElementTree

import pytest

from dflash_tui.cli import main
from tests.support.played_answers import TEXT, begin_played


def test_svg_shows_moment_faster_arm_finishes(folders, tmp_path):
    path = tmp_path / "ab.svg"
    assert main.main(["ab", "play", begin_played(), "--svg", str(path)]) == 0
    drawn = path.read_text(encoding="utf-8")
    assert (drawn.startswith("<svg"), drawn.count("&#160;done&#160;in")) == (True, 1)


def test_a_picture_is_xml_whatever_was_answered(folders, tmp_path):
    """U+FFFE and U+FFFF have no place in XML, nor has markup of an answer."""
    path, said = tmp_path / "ab.svg", "\ufffe<script>\uffff]]></svg>&x;"
    assert main.main(["ab", "play", begin_played(text=lambda _: f"{said}\n{TEXT}"), "--svg", str(path)]) == 0
    texts = [part.text for part in ElementTree.fromstring(path.read_bytes()).iter() if part.text]
    assert any("<script>]]></svg>&x;" in text.replace("\xa0", "") for text in texts)


@pytest.mark.parametrize("words", ["--prompt Poem --svg x", "--arm compile"])
def test_unplayable_experiment_is_refused(folders, monkeypatch, snapshot, capsys, words):
    """Without a terminal and without a file to write; a prompt or an arm that is not there."""
    monkeypatch.chdir(folders)
    assert main.main(["ab", "play", begin_played(), *words.split()]) == 2
    assert capsys.readouterr().err == snapshot
    assert not (folders / "x").exists()
