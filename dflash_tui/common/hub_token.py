"""The file in which `hf auth login` keeps the user's access token, where huggingface_hub looks for it."""

from __future__ import annotations

import os
from pathlib import Path

from dflash_tui.common import private_files

_LARGEST = 1 << 16


def hub_home_folder() -> Path:
    """Return the folder of huggingface_hub, absolute (HF_HOME, XDG_CACHE_HOME)."""
    variable = os.environ.get("HF_HOME")
    return expand_path(variable or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface")


def expand_path(text: str) -> Path:
    """Return the absolute path that a variable of huggingface_hub means."""
    # As the hub's library reads it: `~NAME` of a user that there is not stays as it is.
    return Path(os.path.expanduser(os.path.expandvars(text))).absolute()  # noqa: PTH111


def read_token_file() -> str:
    """Return the token in the file (HF_TOKEN_PATH); empty when there is none."""
    path = os.environ.get("HF_TOKEN_PATH")
    try:
        file = expand_path(path) if path else hub_home_folder() / "token"
        text = private_files.read_file(file, _LARGEST).decode()
    except (OSError, UnicodeDecodeError, RuntimeError):
        return ""
    return text.replace("\r", "").replace("\n", "").strip()
