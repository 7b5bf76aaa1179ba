"""A key of the environment that logs, answers and names quote: no file that is given away has it."""

import zipfile

from tests.cli.test_escapes import told
from tests.support import hostile_home

KEY = "Pl4nted-Pl4nted-k3y/zQ"
RUN, AB = hostile_home.RUN, hostile_home.AB
WRITTEN = (
    ("report", RUN, "-o", "run.md"),
    ("report", RUN, "--json", "-o", "run.json"),
    ("report", RUN, "--format", "svg", "-o", "run.svg"),
    ("report", AB, "-o", "ab.md"),
    ("report", AB, "--json", "-o", "ab.json"),
    ("report", AB, "--format", "svg", "-o", "ab.svg"),
    ("report", "compare", "report.json", AB, "-o", "compared.md"),
    ("export", RUN, "-o", "run.zip"),
    ("export", RUN, "--with-prompts", "-o", "all.zip"),
)


def test_no_written_file_has_key(tmp_path, monkeypatch):
    """Reports, pictures, a bug report and exported runs."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    hostile_home.made(f"say {KEY} twice", here)
    before = set(here.iterdir())
    for words in WRITTEN:
        assert "Traceback" not in told(*words), words
    files = set(here.iterdir()) - before
    assert len(files) == len(WRITTEN)
    texts = {path: path.read_text() for path in files if path.suffix != ".zip"}
    for path in here.glob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            texts[path] = "\n".join(archive.read(name).decode() for name in archive.namelist())
    texts[here / "bug report"] = told("why", RUN, "--report")
    for path, text in texts.items():
        assert KEY not in text, path
        assert "say" in text, path
