"""What other programs are given to reach a server: each form is read as that program or its language reads it."""

import ast
import json
import shlex

import pytest
import yaml

from dflash_tui.presentation import client_text
from dflash_tui.presentation.client_text import ClientProgram, Endpoint, format_wiring
from tests.tui.conftest import a_run

KEY = "not-for-any-file-93c1"
OPEN = Endpoint("http://127.0.0.1:8123/v1", "gemma-4", "VLLM_API_KEY", 32_768)
LOCAL = Endpoint("http://[::1]:8000/v1", 'it\'s "odd" $(x)')


@pytest.mark.parametrize("program", ClientProgram)
@pytest.mark.parametrize("endpoint", [OPEN, LOCAL])
def test_client_wiring_names_server_without_its_key(program, endpoint, monkeypatch):
    """The variable stands in it where the server asks for a key, and nowhere else."""
    monkeypatch.setenv("VLLM_API_KEY", KEY)
    form = format_wiring(endpoint, program)
    assert endpoint.url in form
    assert KEY not in form
    assert ("VLLM_API_KEY" in form) == bool(endpoint.key_variable)
    assert program in client_text.PLACES


@pytest.mark.parametrize("endpoint", [OPEN, LOCAL])
def test_opencode_reads_its_json(endpoint):
    """One provider with one model, which is chosen; an answer is shorter than the context."""
    config = json.loads(format_wiring(endpoint, ClientProgram.OPENCODE))
    [(name, provider)] = config["provider"].items()
    [(model, about)] = provider["models"].items()
    assert config["model"] == f"{name}/{model}" == f"{name}/{endpoint.model}"
    assert provider["npm"] == "@ai-sdk/openai-compatible"
    assert provider["options"].get("apiKey") == ("{env:VLLM_API_KEY}" if endpoint.key_variable else None)
    assert about.get("limit") == ({"context": 32_768, "output": 8192} if endpoint.context else None)


@pytest.mark.parametrize("endpoint", [OPEN, LOCAL])
def test_continue_reads_its_yaml(endpoint):
    config = yaml.safe_load(format_wiring(endpoint, ClientProgram.CONTINUE))
    [model] = config["models"]
    assert (config["schema"], model["provider"], model["model"]) == ("v1", "vllm", endpoint.model)
    assert model["apiBase"] == endpoint.url
    assert model.get("apiKey") == ("${{ secrets.VLLM_API_KEY }}" if endpoint.key_variable else None)


def test_a_shell_reads_its_commands():
    """As one command each; a name that a shell would act on stays a name. Docker takes the key from its environment."""
    curl = shlex.split(format_wiring(LOCAL, ClientProgram.CURL).replace("\\\n", ""))
    assert json.loads(curl[curl.index("-d") + 1])["model"] == LOCAL.model
    assert curl[:3] == ["curl", "-N", f"{LOCAL.url}/chat/completions"]
    assignment, *docker = shlex.split(format_wiring(OPEN, ClientProgram.OPEN_WEBUI).replace("\\\n", ""))
    assert (assignment, docker[:2]) == ("OPENAI_API_KEY=$VLLM_API_KEY", ["docker", "run"])
    assert {f"OPENAI_API_BASE_URL={OPEN.url}", "OPENAI_API_KEY", "PORT=3000"} <= {*docker}


def test_python_reads_its_program():
    texts = [node.value for node in ast.walk(ast.parse(format_wiring(LOCAL, ClientProgram.PYTHON)))
             if isinstance(node, ast.Constant)]  # fmt: skip
    assert {LOCAL.url, LOCAL.model} <= {*texts}


@pytest.mark.parametrize(
    ("changes", "endpoint"),
    [
        ({"port": 8123}, Endpoint("http://127.0.0.1:8123/v1", "toy", "", 4096)),
        ({"host": "0.0.0.0"}, Endpoint("http://127.0.0.1:8000/v1", "toy", "VLLM_API_KEY", 4096)),
        ({"argv": ("vllm", "--max-model-len=auto")}, Endpoint("http://127.0.0.1:8000/v1", "toy")),
        ({"argv": ("vllm", "--max-model-len", "1", "--max-model-len", "8")},
         Endpoint("http://127.0.0.1:8000/v1", "toy", "", 8)),
        ({"argv": ("vllm", "--max-model-len")}, Endpoint("http://127.0.0.1:8000/v1", "toy")),
    ],
)  # fmt: skip
def test_an_endpoint_is_that_of_the_launch(changes, endpoint):
    """A key is asked for where others can connect; a length that is no number is not known."""
    assert Endpoint.from_run(a_run(**changes)) == endpoint
