"""Files of an engine's `vllm` package, and what its wheel's RECORD says of them."""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from dflash_tui.common import paths, private_files
from dflash_tui.common.errors import PatchError
from dflash_tui.engines.environments import Engine

_LARGEST = 64 << 20
_RECORDED = re.compile(r"^vllm/([^,\n]+),sha256=([\w-]{43})=*,", re.MULTILINE)


class EngineFiles(NamedTuple):
    """Files of an engine, by path relative to the `vllm` package."""

    texts: dict[str, str | None]
    """Their texts; None for a file without any."""
    digests: dict[str, str]
    """Their SHA-256, but for those that cannot be read."""
    unreadable: dict[str, str]
    """Why a file has no text."""


def resolve_vllm_file(engine: Engine, path: str) -> Path:
    """Return the file of the engine's `vllm` package that `path` names.

    Raises:
        PatchError: it is a link, or leads out of the package.
    """
    package = paths.resolve_links(engine.vllm_package)
    there = package / path
    if paths.resolve_links(there) != there or not there.is_relative_to(package):
        raise PatchError(f"{path} leads out of the engine's vllm package", evidence=str(paths.resolve_links(there)))
    return there


def read_files(engine: Engine, names: Iterable[str]) -> EngineFiles:
    """Return the files of the engine's `vllm` package that `names` are the paths of."""
    files = EngineFiles({}, {}, {})
    for path in sorted(names):
        files.texts[path] = None
        try:
            data = private_files.read_file(resolve_vllm_file(engine, path), _LARGEST)
            files.digests[path] = hashlib.sha256(data).hexdigest()
            files.texts[path] = data.decode()
        except PatchError as error:
            files.unreadable[path] = error.what
        except FileNotFoundError:
            files.unreadable[path] = f"{path} does not exist"
        except OSError as error:
            files.unreadable[path] = f"{path} cannot be read: {error.strerror}"
        except UnicodeDecodeError as error:
            files.unreadable[path] = f"{path} is not UTF-8 text (byte {error.start})"
    return files


def read_wheel_digests(engine: Engine) -> dict[str, str]:
    """Return the SHA-256 in hexadecimal that the wheel's RECORD states for each file of the `vllm` package."""
    name = re.sub(r"[-_.]+", "_", engine.distribution)
    for record in engine.site_packages.glob(f"{name}-*.dist-info/RECORD"):
        try:
            text = private_files.read_file(record, _LARGEST).decode(errors="replace")
        except OSError:
            continue
        return {path: urlsafe_b64decode(f"{digest}=").hex() for path, digest in _RECORDED.findall(text)}
    return {}
