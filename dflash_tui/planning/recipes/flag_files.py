"""Flags of `vllm serve` that name files and folders, by absolute paths: a server starts in its run's folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dflash_tui.common import paths
from dflash_tui.planning.flag_values import normalize_flag_names

# By the sources of vLLM 0.20.2 to 0.33.0: what is opened as a file ...
FILES = frozenset({
    "chat-template", "log-config-file", "logging-config.pylogging_config_file", "mm-encoder-fp8-scale-path",
    "reasoning-parser-plugin", "ssl-ca-certs", "ssl-certfile", "ssl-keyfile", "tool-parser-plugin",
})  # fmt: skip
# ... what may be a folder, or something else by name, such as a repository of the hub ...
FOLDERS = frozenset(["allowed-local-media-path", "generation-config", "hf-config-path", "lora-modules", "tokenizer"])
# ... and what is written.
WRITTEN = frozenset(["download-dir", "mm-encoder-fp8-scale-save-path"])
_TEMPLATE, _LORA = "chat-template", "lora-modules"
# vLLM takes a chat template with one of these for the text of it, and has some of its own.
_OF_TEXT, _OF_VLLM = frozenset("{}\n"), "template_*.jinja"


def takes_path(name: str) -> bool:
    """Whether a flag takes one path, which is text as it stands."""
    return _normalize(name) in (FILES | FOLDERS | WRITTEN) - {_LORA}


def make_absolute(name: str, value: Any) -> Any:
    """Return the value of a flag with the path that it has here; as it is where nothing of that name is here."""
    flag = _normalize(name)
    if flag not in FILES | FOLDERS | WRITTEN or not isinstance(value, str) or not value or _is_text(flag, value):
        return value
    title, equals, place = value.rpartition("=") if flag == _LORA else ("", "", value)
    path = paths.expand_home(place)
    if flag in WRITTEN or _is_there(flag, path):
        return f"{title}{equals}{os.path.abspath(path)}"  # noqa: PTH100 - Path.absolute keeps `..`
    return value


def list_missing(flags: Mapping[str, Any]) -> dict[str, str]:
    """Return by flag the paths at which vLLM would find nothing: relative ones, and those where nothing is."""
    missing = {}
    for name, value in flags.items():
        flag = _normalize(name)
        if flag not in FILES | FOLDERS or not isinstance(value, str) or _is_text(flag, value):
            continue
        path = Path(value.rpartition("=")[2] if flag == _LORA else value)
        is_path = flag in FILES or path.is_absolute() or str(value).startswith((".", "~"))
        if is_path and not (path.is_absolute() and _is_there(flag, path)):
            missing[name] = value
    return missing


def _normalize(name: str) -> str:
    return next(iter(normalize_flag_names({name: None})))


def _is_text(flag: str, value: str) -> bool:
    """Whether vLLM would take the value of a flag for no path of the user's."""
    return flag == _TEMPLATE and (bool(_OF_TEXT & {*value}) or ("/" not in value and Path(value).match(_OF_VLLM)))


def _is_there(flag: str, path: Path) -> bool:
    try:
        return path.is_file() if flag in FILES else path.is_dir()
    except (OSError, ValueError):  # such as a name that is too long
        return False
