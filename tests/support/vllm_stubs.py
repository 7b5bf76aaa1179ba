"""Files of a vLLM release, executed as published; every other module that they import is a stub."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Protocol

STUBBED = {"vllm", "torch", "transformers", "numpy", "pydantic", "regex", "tqdm"}
Load = Callable[[str], ModuleType]


class _Meta(type(Protocol)):  # type: ignore[misc]
    """Answers for stubs only: what vLLM derives from one has no attributes but its own."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") or "stub" not in vars(cls):
            raise AttributeError(name)
        setattr(cls, name, _stub(name))
        return vars(cls)[name]

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if "stub" in vars(cls) and len(args) == 1 and (inspect.isclass(args[0]) or inspect.isfunction(args[0])):
            return args[0]  # a decorator
        return super().__call__(*args, **kwargs)

    def __bool__(cls) -> bool:
        return "stub" not in vars(cls)


class _Stub(metaclass=_Meta):
    """Stands for any name: a base, a function, a decorator with or without arguments, a setting that is not set."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __class_getitem__(cls, _key: Any) -> Any:
        return cls

    def __getattr__(self, name: str) -> Any:
        return getattr(type(self), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return type(self)(*args, **kwargs)


def _stub(name: str) -> Any:
    return _Meta(name, (_Stub,), {"stub": True})


class Module:
    """Stands for `torch.nn.Module`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)  # type: ignore[attr-defined]


class _Finder:
    """Finds the files in `texts`, and a stub for every other module of STUBBED."""

    def __init__(self, texts: Mapping[str, str | None], known: Mapping[str, Any]) -> None:
        self.texts = {_module(path): text for path, text in texts.items() if text is not None}
        self.known = {"Module": Module, **known}

    def find_spec(self, name: str, *_where: Any) -> ModuleSpec | None:
        if name.partition(".")[0] not in STUBBED:
            return None
        return ModuleSpec(name, self, is_package=name not in self.texts)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None if spec.name in self.texts else ModuleType(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if text := self.texts.get(module.__name__):
            exec(compile(text, module.__name__, "exec", dont_inherit=True), vars(module))
            return

        def name_of_it(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            setattr(module, name, self.known.get(name, _stub(name)))
            return vars(module)[name]

        vars(module).update(__getattr__=name_of_it)


def _module(path: str) -> str:
    return "vllm." + path.removesuffix(".py").replace("/", ".")


@contextmanager
def vllm(texts: Mapping[str, str | None], **known: Any) -> Iterator[Load]:
    """Let `import` find a vLLM that is the files `texts` and otherwise stubs, for as long as this lasts.

    A name in `known` is that in every stub that is asked for it; any other is a class of its own that takes
    everything, is false and decorates without a change. Yields what imports a file by its path in the package.
    """
    finder: Any = _Finder(texts, known)
    before = _loaded()
    for name in before:
        del sys.modules[name]
    sys.meta_path.insert(0, finder)
    try:
        yield lambda path: importlib.import_module(_module(path))
    finally:
        sys.meta_path.remove(finder)
        for name in _loaded():
            del sys.modules[name]
        sys.modules.update(before)


def _loaded() -> dict[str, ModuleType]:
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] in STUBBED}
