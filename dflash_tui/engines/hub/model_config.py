"""Read a model's config.json before anything is downloaded: from its folder, the hub's cache, or the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from dflash_tui.common import untrusted_json
from dflash_tui.common.errors import DflashError
from dflash_tui.engines.hub import client, model_lookup
from dflash_tui.engines.hub.client import HubAccessError
from dflash_tui.engines.hub.model_lookup import ModelAvailability
from dflash_tui.planning.derivation.checkpoint import Checkpoint, read_checkpoint

_GIGABYTE = 1e9
_TEMPLATE, _TOKENIZER = "chat_template.jinja", "tokenizer_config.json"
# Its texts become lines of a recipe file.
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class _TokenizerConfig(msgspec.Struct):
    """What is read of a tokenizer_config.json: a template, or several with names."""

    chat_template: Any = None


_TOKENIZER_DECODER = msgspec.json.Decoder(_TokenizerConfig)


async def look_up_checkpoint(name: str, revision: str = "main", *, is_served: bool = True) -> Checkpoint:
    """Return what a model's config.json says, whether it is gated and how large, and if it is served what it may say.

    Raises:
        DflashError: there is no such model, it may not be read, or it has no config.json.
    """
    model = await model_lookup.look_up_model(name, revision)
    config = await _read_config(model)
    size = model.total_bytes / _GIGABYTE if model.total_bytes else None
    template = await _read_chat_template(model) if is_served else None
    return read_checkpoint(name, config, gated=model.gated, size_gb=size, chat_template=template)


async def _read_config(model: ModelAvailability) -> dict[str, Any]:
    if not (model.folder or model.access.ok):
        raise DflashError(
            f"{model.repo} cannot be read: {model.access}",
            evidence=model.detail,
            hint=model_lookup.advise_access(model),
        )
    try:
        text = await _read_file(model, "config.json")
        config = untrusted_json.decode_untrusted(text, _DECODER, one_line=True)
    except (OSError, HubAccessError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_config(model.repo, str(error)) from None
    if not isinstance(config, dict):
        raise _no_config(model.repo, "it is not a JSON object")
    return config


async def _read_file(model: ModelAvailability, name: str) -> bytes:
    if model.folder:
        return model_lookup.read_small_file(Path(model.folder), name)
    return await client.fetch_small_file(model.repo, model.commit or model.revision, name)


async def _read_chat_template(model: ModelAvailability) -> str | None:
    """Return the template by which a model talks; None where it has none that can be read."""
    names = {file.name for file in model.files}
    for name in (_TEMPLATE, _TOKENIZER):
        if not (model.folder or name in names):
            continue
        try:
            text = await _read_file(model, name)
            if name == _TEMPLATE:
                return text.decode()
            templates = _TOKENIZER_DECODER.decode(text).chat_template
            if isinstance(templates, list):
                return json.dumps(templates)
        except (OSError, HubAccessError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
        return templates if isinstance(templates, str) else None
    return None


def _no_config(name: str, evidence: str) -> DflashError:
    do = "vLLM serves checkpoints with a config.json and safetensors; a GGUF repository has none"
    return DflashError(f"{name} has no config.json that can be read", evidence=evidence, hint=do)
