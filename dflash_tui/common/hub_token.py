"""The file in which `hf auth login` keeps the user's access token, where huggingface_hub looks for it."""

from __future__ import annotations

import os
from pathlib import Path


def hub_home_folder() -> Path:
    """Return the folder of huggingface_hub, absolute (HF_HOME, XDG_CACHE_HOME)."""
    variable = os.environ.get("HF_HOME")
    return expand_path(variable or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/huggingface")


def expand_path(text: str) -> Path:
    """Return the absolute path that a variable of huggingface_hub means."""
    return Path(os.path.expandvars(text)).expanduser().absolute()


def read_token_file() -> str:
    """Return the token in the file (HF_TOKEN_PATH); empty when there is none."""
    path = os.environ.get("HF_TOKEN_PATH")
    try:
        text = (expand_path(path) if path else hub_home_folder() / "token").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, RuntimeError):
        return ""
    return text.replace("\r", "").replace("\n", "").strip()
