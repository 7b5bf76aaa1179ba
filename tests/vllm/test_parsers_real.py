"""The parsers of a real vLLM, made with a tokenizer that has none of their tokens."""

import json
import subprocess
from pathlib import Path

import pytest

from dflash_tui.planning.advice import release_values

pytestmark = [pytest.mark.vllm, pytest.mark.long]

SMOLLM2 = Path(__file__).parents[1] / "data/smollm2"
# They refuse it for more than tokens with a name: metadata, pieces of text, tokens that they look for by a pattern.
OTHER_REASONS = {"hf", "olmo3", "hy_v4"}
MAKE_PARSERS = """
import json, sys
from transformers import AutoTokenizer
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

tokenizer, refusals = AutoTokenizer.from_pretrained(sys.argv[1]), {}
for flag, manager, find in (
    ("tool-call-parser", ToolParserManager, ToolParserManager.get_tool_parser),
    ("reasoning-parser", ReasoningParserManager, ReasoningParserManager.get_reasoning_parser),
):
    refusals[flag] = []
    for name in manager.list_registered():
        try:
            find(name)(tokenizer)
        except (KeyError, RuntimeError, ValueError):
            refusals[flag].append(name)
print(json.dumps(refusals))
"""


def test_vllm_refuses_the_parsers_that_the_table_says(demo_engine):
    made = subprocess.run(
        [demo_engine.python, "-c", MAKE_PARSERS, SMOLLM2], check=True, capture_output=True, text=True, cwd="/"
    )
    for flag, refused in json.loads(made.stdout.splitlines()[-1]).items():
        needs = release_values.list_values(demo_engine.vllm)[flag].needs
        assert needs
        assert set(refused) - OTHER_REASONS == needs.keys()
