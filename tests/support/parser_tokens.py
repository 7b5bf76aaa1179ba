"""The tokens without which a parser of vLLM refuses a tokenizer, found by making each parser of a release.

`python -m tests.support.parser_tokens FOLDER` prints them as JSON for the parsers unpacked in FOLDER. All that is not
a parser is stood in for, so that nothing of the release has to be installed.
"""

import importlib
import importlib.abc
import importlib.util
import json
import re
import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

SOURCES = re.compile(r"vllm/(tool_parsers|reasoning|parser)/.*\.py")
_REGISTRIES = {"tool-call-parser": ("tool_parsers", "_TOOL_PARSERS_TO_REGISTER"),
               "reasoning-parser": ("reasoning", "_REASONING_PARSERS_TO_REGISTER")}  # fmt: skip
# Tokens of mistral_common, which vLLM takes from there.
_MISTRAL_TOKENS = {"tool_calls": "[TOOL_CALLS]", "args": "[ARGS]", "begin_think": "[THINK]", "end_think": "[/THINK]"}
# Others, such as </ or think, are pieces of ordinary text.
_SPECIAL = re.compile(r"<.+>|\[.+\]")


def read_tokens(folder: Path) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return by flag and parser the tokens that it insists on, of the sources below `folder`, by another process."""
    command = [sys.executable, "-m", __name__, str(folder)]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2]).stdout)
    return {flag: {name: tuple(tokens) for name, tokens in parsers.items()} for flag, parsers in found.items()}


class _StandInType(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __or__(cls, other: object) -> Any:
        return cls

    def __ror__(cls, other: object) -> Any:
        return cls


class StandIn(metaclass=_StandInType):
    """Anything that a parser imports or is given: it can be called, derived from and iterated, and is false."""

    def __init__(self, *args: object, **words: object) -> None:
        pass

    def __init_subclass__(cls, **words: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __call__(self, *args: Any, **words: object) -> Any:
        return args[0] if len(args) == 1 and callable(args[0]) and not words else StandIn()

    def __getitem__(self, key: object) -> Any:
        return StandIn()

    def __iter__(self) -> Any:
        return iter(())

    def __bool__(self) -> bool:
        return False


class _StandInModule(types.ModuleType):
    __path__ = ()  # type: ignore[assignment]
    __version__ = "5.0"  # of transformers

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "SpecialTokens":
            values = {key: types.SimpleNamespace(value=value) for key, value in _MISTRAL_TOKENS.items()}
            return types.SimpleNamespace(**values)
        return StandIn


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds parsers in a folder, the standard library where it is, and stand-ins for all else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        place = self._folder / name.replace(".", "/")
        if (place / "__init__.py").exists():
            return importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )
        if (file := place.with_suffix(".py")).exists():
            return importlib.util.spec_from_file_location(name, file)
        return None if name.partition(".")[0] in sys.stdlib_module_names else ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        return re if spec.name == "regex" else _StandInModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class _Vocabulary(dict[str, int]):
    """A vocabulary that has each token but `without`, and knows which it was asked for."""

    def __init__(self, without: str = "") -> None:
        super().__init__()
        self._without, self.asked = without, dict[str, int]()

    def get(self, token: str, default: Any = None) -> Any:
        number = self.asked.setdefault(token, len(self.asked))
        return default if token == self._without else number

    def __getitem__(self, token: str) -> int:
        if (number := self.get(token)) is None:
            raise KeyError(token)
        return int(number)

    def __contains__(self, token: object) -> bool:
        return self.get(str(token)) is not None

    def __iter__(self) -> Any:
        raise KeyError("the parser chooses its tokens by what the vocabulary has")


class _Tokenizer(StandIn):
    def __init__(self, vocabulary: _Vocabulary) -> None:
        self._vocabulary = vocabulary

    def get_vocab(self) -> _Vocabulary:
        return self._vocabulary

    def __bool__(self) -> bool:
        return True


def _try_all(folder: Path) -> dict[str, dict[str, list[str]]]:
    sys.meta_path.insert(0, _Finder(folder))
    found: dict[str, dict[str, list[str]]] = {}
    for flag, (package, table) in _REGISTRIES.items():
        registered = getattr(importlib.import_module(f"vllm.{package}"), table)
        for name, (module, kind) in registered.items():
            made = getattr(importlib.import_module(f"vllm.{package}.{module}"), kind)
            if tokens := _list_tokens(made):
                found.setdefault(flag, {})[name] = tokens
    return found


def _list_tokens(made: Any) -> list[str]:
    """Return the tokens without which a parser cannot be made; none where it wants more than tokens."""
    vocabulary = _Vocabulary()
    if not _can_make(made, vocabulary):
        return []
    return [
        token for token in vocabulary.asked if _SPECIAL.fullmatch(token) and not _can_make(made, _Vocabulary(token))
    ]


def _can_make(made: Any, vocabulary: _Vocabulary) -> bool:
    try:
        made(_Tokenizer(vocabulary))
    except (KeyError, RuntimeError, ValueError):  # a parser that refuses its tokenizer
        return False
    return True


if __name__ == "__main__":
    print(json.dumps(_try_all(Path(sys.argv[1]))))
