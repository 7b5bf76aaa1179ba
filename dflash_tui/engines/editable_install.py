"""Where the `vllm` package of an environment is: in its site-packages, or in a source tree that they lead to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from dflash_tui.common import paths, private_files
from dflash_tui.common.untrusted_json import register_type

_LARGEST = 1 << 20
_MAPPING = re.compile(r"^MAPPING(?:\s*:[^=]+)?\s*=\s*(\{.*\})\s*$", re.MULTILINE)


class _DirInfo(msgspec.Struct, frozen=True):
    editable: bool = False


class _DirectUrl(msgspec.Struct, frozen=True):
    """The part of an installer's direct_url.json that says what was installed."""

    url: str
    dir_info: _DirInfo = _DirInfo()


register_type(_DirectUrl)


def find_package(site: Path) -> Path:
    """Return the folder of the `vllm` package, as Python would find it; that of a wheel where there is none at all."""
    inside = site / "vllm"
    if inside.exists() or inside.is_symlink():
        return inside
    return next((place for place in _list_places(site) if (place / "__init__.py").is_file()), inside)


def find_source_tree(site: Path) -> Path | None:
    """Return the source tree that vLLM is installed from in editable mode; None where its files are its wheel's."""
    package = find_package(site)
    if package == site / "vllm":
        return None
    return next((root for root in _list_roots(site) if paths.resolve_links(package).is_relative_to(root)), None)


def _list_places(site: Path) -> Iterator[Path]:
    """Yield where `vllm` may be: what finders of setuptools map it to, folders of path files, the source tree."""
    for finder in sorted(site.glob("__editable__*_finder.py")):
        if match := _MAPPING.search(_read(finder)):
            yield from _read_mapping(match[1])
    for file in sorted(site.glob("*.pth")):
        lines = [line.strip() for line in _read(file).splitlines()]
        folders = [line for line in lines if line and not line.startswith(("#", "import ", "import\t"))]
        yield from (site / folder / "vllm" for folder in folders if "\0" not in folder)
    yield from (root / "vllm" for root in _list_roots(site))


def _read_mapping(text: str) -> Iterator[Path]:
    try:
        mapping = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return
    if isinstance(mapping, dict) and isinstance(place := mapping.get("vllm"), str):
        yield Path(place)


def _list_roots(site: Path) -> Iterator[Path]:
    """Yield the source trees that installers have noted for vLLM."""
    for file in sorted(site.glob("vllm*.dist-info/direct_url.json")):
        try:
            noted = msgspec.json.decode(_read(file), type=_DirectUrl)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        parts = urlsplit(noted.url)
        if noted.dir_info.editable and parts.scheme == "file":
            yield paths.resolve_links(Path(unquote(parts.path)))


def _read(file: Path) -> str:
    try:
        return private_files.read_file(file, _LARGEST).decode(errors="replace")
    except OSError:
        return ""
