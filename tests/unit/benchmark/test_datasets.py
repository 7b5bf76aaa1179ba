"""Data sets by name and by file: what is asked of them, what is made up, and what a hostile file can do."""

import gzip
import json

import pytest

from dflash_tui.benchmark import suites
from dflash_tui.common.errors import DflashError, UsageError

FORMS = {
    "question.jsonl": ({"question_id": 81, "category": "writing", "prompt": ["First.", "Then."], "reference": []},
                       ("writing 81", "First.", 2048)),
    "speed.jsonl": ({"question_id": "a-uuid", "category": "coding", "turns": ["Do it."]},
                    ("coding 1", "Do it.", 2048)),
    "test.jsonl": ({"question": "2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 1,234"},
                   ("gsm8k 1", "2 + 2?", 512)),
    "HumanEval.jsonl.gz": ({"task_id": "HumanEval/0", "prompt": "def f():\n", "canonical_solution": "x", "test": "y"},
                           ("HumanEval/0", "```python\ndef f():\n", 1024)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_files_are_read_as_they_are_published(tmp_path, name):
    line, (kind, text, length) = FORMS[name]
    data = json.dumps(line).encode() + b"\n"
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    [prompt] = suites.load_suite(str(tmp_path / name)).prompts
    assert (prompt.kind, prompt.max_tokens) == (kind, length)
    assert text in prompt.text


def test_conversation_sends_its_first_question(tmp_path):
    """What begins with the model, is empty or a document is passed over; the array may be cut by its bound."""
    turns = [
        [{"from": "gpt", "value": "Hello, I am a model."}, {"from": "human", "value": "What is a lighthouse for?"}],
        [{"from": "gpt", "value": "Nobody asked."}], [{"from": "human", "value": "x" * 9000}],
        [{"from": "human", "value": "Tell me of the sea, please."}],
    ]  # fmt: skip
    path = tmp_path / "ShareGPT.json"
    path.write_text(json.dumps([{"id": str(n), "conversations": one} for n, one in enumerate(turns)]))
    found = suites.load_suite(str(path)).prompts
    assert [p.kind for p in found] == ["sharegpt 1", "sharegpt 4"]
    assert [p.text for p in found] == [turns[0][1]["value"], turns[3][0]["value"]]


def test_json_dataset_is_read_up_to_limit(tmp_path, monkeypatch):
    path = tmp_path / "large.json"
    path.write_text(json.dumps([{"prompt": f"Question {n:04}"} for n in range(100)]))
    monkeypatch.setattr(suites, "_MOST_BYTES", 1000)
    found = suites.load_suite(str(path)).prompts
    assert 20 < len(found) < 50
    lines = tmp_path / "large.jsonl"
    lines.write_text("\n".join(json.dumps({"prompt": f"Question {n:04}"}) for n in range(100)))
    assert 20 < len(suites.load_suite(str(lines)).prompts) < 50
    monkeypatch.setattr(suites, "_MOST_QUESTIONS", 7)
    assert len(suites.load_suite(str(path)).prompts) == 7


@pytest.mark.parametrize(
    ("name", "data", "error"),
    [
        ("a.json", b"{}", ":1: expected a JSON array"),
        ("a.json", b'[{"prompt": "x"}, {"prompt": ', ": 2. member: "),
        ("a.jsonl", b'{"question": ["\xff"]}', ":1: "),
        ("a.jsonl.gz", b"no gzip", ": "),
        ("a.jsonl.gz", gzip.compress(bytes(80 << 20), 1), ":1: "),
    ],
    ids=range(5),
)
def test_a_hostile_file_is_one_sentence(tmp_path, name, data, error):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DflashError) as caught:
        suites.load_suite(str(path))
    assert str(caught.value).startswith(f"{path}{error}")
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).isprintable()


def test_own_dataset_file_overrides_fetched_one():
    """The user's own file wins; 80 prompts are taken evenly, or as many as are asked for; two names are two suites."""
    assert suites.name_missing_dataset("gsm8k:5") == suites.name_missing_dataset("repeat:gsm8k") == "gsm8k"
    with pytest.raises(UsageError) as caught:
        suites.load_suite("gsm8k")
    assert caught.value.evidence == str(suites.own_dataset_file("gsm8k"))
    fetched = suites.fetched_dataset_file("gsm8k")
    fetched.parent.mkdir(parents=True)
    lines = [json.dumps({"question": f"{n} + 1?", "answer": f"#### {n + 1}"}) for n in range(400)]
    fetched.write_text("\n".join(lines))
    assert suites.name_missing_dataset("gsm8k") is None
    suite = suites.load_suite("gsm8k")
    assert [p.kind for p in suite.prompts[:3]] == ["gsm8k 1", "gsm8k 6", "gsm8k 11"]
    assert len(suite.prompts) == 80
    assert len(suites.load_suite("gsm8k:400").prompts) == 400
    assert [p.kind for p in suites.load_suite("gsm8k:2").prompts] == ["gsm8k 1", "gsm8k 201"]
    suites.own_dataset_file("gsm8k").parent.mkdir(parents=True)
    suites.own_dataset_file("gsm8k").write_text(lines[7])
    assert [p.text.partition("\n")[0] for p in suites.load_suite("gsm8k").prompts] == ["7 + 1?"]


def test_stored_questions_keep_their_digest(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({"question": "Why?", "answer": "#### 7.50"}))
    first = suites.load_suite(str(tmp_path / "test.jsonl"))
    (tmp_path / "copy.jsonl").write_bytes(suites.format_questions(first.prompts))
    assert suites.load_suite(str(tmp_path / "copy.jsonl")).digest == first.digest


def test_digests_of_before_hold():
    """By them an experiment that was begun earlier finds its prompts unchanged."""
    digests = [suites.load_suite(name).digest[:8] for name in ("quick", "field", "contexts")]
    assert digests == ["ecf25263", "636ed96a", "20274aa3"]


def test_random_prompts_are_the_same_everywhere():
    suite, again = suites.load_suite("random:200,32,3"), suites.load_suite("random:200,32,3")
    assert [(p.kind, len(p.text.split()), p.max_tokens) for p in suite.prompts] == [
        (f"random {n}", 200, 32) for n in (1, 2, 3)
    ]
    assert suite.digest == again.digest
    assert len({p.text[:100] for p in suite.prompts}) == 3
    assert len(suites.load_suite("random:8,8").prompts) == 20


def test_contexts_are_swept():
    """From one length to the next they double; each is a level, and no sample of what may be asked."""
    sweep = suites.load_suite("contexts:1k-128k")
    assert [p.kind for p in sweep.prompts] == ["1k", "2k", "4k", "8k", "16k", "32k", "64k", "128k"]
    assert sweep.levels
    lengths = [len(p.text) for p in sweep.prompts]
    assert lengths[-1] == pytest.approx(128 * lengths[0], rel=0.05)
    assert [p.kind for p in suites.load_suite("contexts:4k,32k,3k").prompts] == ["4k", "32k", "3k"]
    assert [p.kind for p in suites.load_suite("contexts:3k-20k").prompts] == ["3k", "6k", "12k", "20k"]


def test_repeated_texts_are_sent_as_they_are():
    from_file = suites.load_suite("repeat:quick")
    assert from_file.repeats
    assert {p.text for p in from_file.prompts} == {p.text for p in suites.load_suite("quick").prompts}
    [prompt] = suites.load_suite("repeat").prompts
    assert (prompt.salted, prompt.repeat) == (False, 8)
    assert not suites.load_suite("quick").repeats


@pytest.mark.parametrize(
    "words",
    ["gsm8k:0", "random:5", "random:9999999,1,9", "repeat:repeat", "contexts:8k-4k", "contexts:999k", "repeat:nope"],
)
def test_invalid_suite_is_reported(words):
    with pytest.raises(UsageError) as caught:
        suites.load_suite(words)
    assert caught.value.hint
