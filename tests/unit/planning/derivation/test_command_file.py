"""Files that start vLLM, as people write them, become the command that they hold."""

import pytest

from dflash_tui.common.errors import UsageError
from dflash_tui.planning.derivation.command_file import read_command_file

SCRIPT = """#!/bin/bash
# serve it
set -euo pipefail
export VLLM_USE_V1=1
export HF_TOKEN=hf_0123456789abcdefghijABCDEFGHIJ
MODEL=Qwen/Qwen3-8B
SEQS=${SEQS:-8}   # at a time
cd /models
vllm serve "$MODEL" \\
  --port ${PORT:-8001} --max-num-seqs $SEQS \\
  --speculative-config '{"method": "dflash",
                         "model": "z-lab/Qwen3-8B-DFlash-b16"}' "$@"
echo it ended
"""
COMPOSE = """
services:
  web: {image: nginx}
  vllm:
    image: vllm/vllm-openai:v0.28.0
    ports: ["8001:8000"]
    environment: [VLLM_USE_V1=1, "HF_TOKEN=${HF_TOKEN}"]
    volumes: ["~/.cache:/root/.cache"]
    restart: always
    command: >
      --model Qwen/Qwen3-8B --max-num-seqs 8
"""


def left_out(command) -> list[str]:
    return [each.what for each in command.left_out]


def test_a_script_is_read_with_its_variables_and_lines():
    command = read_command_file("run.sh", SCRIPT)
    config = '{"method": "dflash",\n                         "model": "z-lab/Qwen3-8B-DFlash-b16"}'
    assert command.words == (
        "Qwen/Qwen3-8B", "--port", "8001", "--max-num-seqs", "8", "--speculative-config", config,
    )  # fmt: skip
    assert command.env["VLLM_USE_V1"] == "1"
    assert left_out(command) == ["cd /models", "$PORT", "echo it ended"]
    assert "MODEL" not in command.env


@pytest.mark.parametrize(
    "text",
    [
        "docker run --gpus all -p 8001:8000 vllm/vllm-openai:v0.28.0 --model a/B --max-num-seqs 8",
        "docker run --gpus all \\\n  -p 8001:8000 \\\n  vllm/vllm-openai:v0.28.0 \\\n  --model a/B --max-num-seqs 8\n",
        "# mine\nsudo docker run -p 8001:8000 vllm/vllm-openai:v0.28.0 --model a/B --max-num-seqs 8\n",
    ],
)
def test_a_docker_line_in_a_file_is_read(text):
    command = read_command_file("serve", text)
    assert (command.port, command.image) == ("8001", "vllm/vllm-openai:v0.28.0")
    assert command.words[-2:] == ("--max-num-seqs", "8")


def test_a_compose_file_is_the_container_that_it_starts():
    command = read_command_file("docker-compose.yml", COMPOSE)
    assert (command.port, command.image) == ("8001", "vllm/vllm-openai:v0.28.0")
    assert command.words == ("--model", "Qwen/Qwen3-8B", "--max-num-seqs", "8")
    assert command.env == {"VLLM_USE_V1": "1"}
    assert {"service web", "restart", "-v ~/.cache:/root/.cache", "-e HF_TOKEN"} <= set(left_out(command))


def test_a_service_takes_mappings_lists_and_an_entry_point():
    text = """
services:
  a:
    image: nvcr.io/nvidia/vllm:26.01
    environment: {VLLM_USE_V1: 1}
    entrypoint: [vllm, serve]
    command: [a/B, --max-num-seqs, "8"]
"""
    command = read_command_file("compose.yaml", text)
    assert command.words == ("a/B", "--max-num-seqs", "8")
    assert command.env == {"VLLM_USE_V1": "1"}


SPARKRUN = """
recipe_version: "2"
model: a/B
container: vllm/vllm-openai:v0.28.0
mods: [mods/mine]
metadata: {description: "{port} of nothing"}
defaults: {port: 8001, async_scheduling: true, spec: '{"method":"mtp","num_speculative_tokens":3}'}
env: {VLLM_USE_V1: 1, HF_TOKEN: "${HF_TOKEN}"}
command: |
  vllm serve {model} \\
    --port {port} --speculative-config '{spec}' --async-scheduling {async_scheduling}
"""


@pytest.mark.parametrize("config", ["'{spec}'", """'{{"method":"mtp","num_speculative_tokens":3}}'"""])
def test_a_recipe_of_sparkrun_is_its_command_with_its_defaults(config):
    """Of eugr's scripts, too, in which braces of JSON are doubled."""
    command = read_command_file("mine.yaml", SPARKRUN.replace("'{spec}' ", f"{config} "))
    assert command.words == (
        "a/B", "--port", "8001", "--speculative-config", '{"method":"mtp","num_speculative_tokens":3}',
        "--async-scheduling", "true",
    )  # fmt: skip
    assert (command.env, command.image) == ({"VLLM_USE_V1": "1"}, "vllm/vllm-openai:v0.28.0")
    assert left_out(command) == ["env HF_TOKEN", "mods"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mine.yaml", "command: vllm serve {model}"),
        ("mine.yaml", "{command: vllm serve {a}, defaults: {a: [1]}}"),
        ("mine.yaml", f"command: vllm serve {'{a}' * 300}\ndefaults: {{a: {'x' * 300}}}"),
        ("mine.yaml", "command: echo\ndefaults: 3"),
        ("run.sh", "echo hello"),
        ("run.sh", ""),
        ("run.sh", "vllm serve $MODEL"),
        ("run.sh", "vllm serve 'a/B"),
        ("run.sh", "'" + "a\n" * 5000),
        ("run.sh", "A=xxxxxxxx\n" + "A=$A$A$A$A\n" * 30 + "vllm serve $A"),
        ("run.sh", f"A={'x' * 20_000}\nvllm serve {'$A ' * 9000}"),
        ("compose.yaml", "services: {a: {image: nginx}}"),
        ("compose.yaml", "services: [1]"),
        ("compose.yaml", "- vllm serve"),
        ("compose.yaml", "a: ["),
        ("compose.yaml", 'services: {a: {image: vllm/vllm-openai, command: "\'"}}'),
        ("compose.yaml", "services: {a: {image: 'vllm/vllm-openai:$TAG'}}"),
    ],
)
def test_what_starts_nothing_that_can_be_read_is_refused(name, text):
    with pytest.raises(UsageError):
        read_command_file(name, text)


def test_an_entry_point_whose_quotes_do_not_match_is_one_word():
    command = read_command_file("run.sh", """docker run --entrypoint "it's" vllm/vllm-openai vllm serve a/B""")
    assert command.words == ("a/B",)
