"""Prompt suites: the shipped ones, the user's own, and what is wrong with a file."""

import pytest

from dflash_tui.benchmark import suites
from dflash_tui.common import paths
from dflash_tui.common.errors import RecipeError, UsageError

GOOD = "title: Mine\nprompts:\n  - {kind: Q, text: Hello there., max_tokens: 32}\n"


def test_the_shipped_suites_are_the_field_s():
    """Kinds and lengths as the field measures them; Math is short, so it comes ten times."""
    field = {p.kind: (p.max_tokens, p.repeat) for p in suites.load_suite("field").prompts}
    assert field == {
        "Q&A": (256, 1), "Code": (512, 1), "JSON": (1024, 1), "Math": (64, 10), "LongCode": (2048, 1),
        "Prose": (1024, 1), "LongContext": (512, 1),
    }  # fmt: skip
    quick = suites.load_suite("quick").prompts
    assert [(p.kind, p.max_tokens) for p in quick] == [(kind, field[kind][0]) for kind in list(field)[:5]]
    pair = suites.load_suite("seed-q1q2")
    assert (pair.in_order, [prompt.follows for prompt in pair.prompts]) == (True, ["", "Q1"])
    assert {"agents", "club-3090", "contexts", "field", "map", "quick", "seed-q1q2", "space-invaders"} == set(
        suites.list_suite_files()
    )


def test_long_context_consists_of_numbered_sentences():
    long = suites.load_suite("field").prompts[-1].text.splitlines()
    assert long[0].startswith("Entry 1: ")
    assert long[399].startswith("Entry 400: ")
    assert len(set(long[:400])) == 400
    assert long[-1].endswith("go well together.")


def test_suite_digest_depends_on_content_only(tmp_path):
    """Two names of one content are one suite; a changed length is another."""
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(GOOD.replace("Mine", "Yours"))
    (tmp_path / "c.yaml").write_text(GOOD.replace("32", "33"))
    a, b, c = (suites.load_suite(str(tmp_path / f"{name}.yaml")) for name in "abc")
    assert (a.name, b.name) == ("a", "b")
    assert a.digest == b.digest != c.digest
    assert len(a.digest) == 64


def test_the_user_s_own_suite_wins():
    paths.user_suites_folder().mkdir(parents=True)
    (paths.user_suites_folder() / "quick.yaml").write_text(GOOD)
    assert [p.kind for p in suites.load_suite("quick").prompts] == ["Q"]
    with pytest.raises(UsageError, match="'quik'") as caught:
        suites.load_suite("quik")
    assert caught.value.hint == "did you mean 'quick'?"


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("text: Hello there., ", "", "3: prompts[0]: object missing required field `text`"),
        ("max_tokens: 32", "max_tokens: 0", "3: prompts[0].max_tokens: expected `int` >= 1"),
        ("max_tokens: 32", "max_tokens: 32, follows: Q", "3: prompts[0].follows: expected the kind of an earlier"),
        ("max_tokens", "max_token", "3: prompts[0].max_token: unknown key, did you mean 'max_tokens'?"),
        ("kind: Q", "kind: warm-up", "3: prompts[0].kind: is reserved"),
        ("kind: Q", 'kind: "\\e[31m"', "3: prompts[0].kind: "),
        ("Hello there.", '" "', "3: prompts[0].text: "),
        ("Hello there.", '"\\ud800"', "3: not YAML"),
        ("max_tokens: 32}", "max_tokens: 32}\n  - {kind: Q, text: again, max_tokens: 8}", "4: prompts[1].kind: given"),
        ("  - {kind: Q, text: Hello there., max_tokens: 32}\n", "  []\n", "2: prompts: expected `array` of length"),
    ],
)  # fmt: skip
def test_suite_error_names_file_line_and_key(tmp_path, old, new, error):
    path = tmp_path / "mine.yaml"
    path.write_text(GOOD.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        suites.load_suite(str(path))
    assert str(caught.value).startswith(f"{path}:{error}")


def test_missing_suite_file_is_reported(tmp_path):
    with pytest.raises(RecipeError, match="No such file"):
        suites.load_suite(str(tmp_path / "none.yaml"))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{", ":1: "),
        ('{"prompt": "x", "output_tokens": 9}\n{"turns": []}', ":2: Expected `array` of length >= 1"),
        ('{"category": "x"}', ":1: expected `turns`, `prompt`, `question` or `conversations`"),
        ('{"question_id": 1, "prompt": "x"}\n{"question_id": 1, "prompt": "y"}', ":2: question_id: prompt 1 is given"),
        ("[" * 9999, ":1: "),
        ('{"prompt": "x", "category": "\\u001b[31m"}', ":1: Expected `str` matching"),
        ("\n", ": holds no prompt"),
    ],
)
def test_bad_lines_are_named(tmp_path, text, error):
    path = tmp_path / "mine.jsonl"
    path.write_text(text)
    with pytest.raises(RecipeError) as caught:
        suites.load_suite(str(path))
    assert str(caught.value).startswith(f"{path}{error}")


def test_kinds_select_prompts_of_a_suite():
    suite = suites.load_suite("map:code,long")
    assert {prompt.kind.split()[0] for prompt in suite.prompts} == {"code", "long"}
    assert [part.requests for part in suite.split_kinds()] == [4, 4]
    with pytest.raises(UsageError, match="its kinds: code, JSON"):
        suites.load_suite("map:poems")
