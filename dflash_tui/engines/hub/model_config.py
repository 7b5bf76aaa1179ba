"""Read a model's config.json before anything is downloaded: from its folder, the hub's cache, or the hub."""

from __future__ import annotations

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
# Its texts become lines of a recipe file.
_DECODER: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


async def look_up_checkpoint(name: str, revision: str = "main") -> Checkpoint:
    """Return what a model's config.json says, and whether it is gated and how large.

    Raises:
        DflashError: there is no such model, it may not be read, or it has no config.json.
    """
    model = await model_lookup.look_up_model(name, revision)
    config = await _read_config(model)
    size = model.total_bytes / _GIGABYTE if model.total_bytes else None
    return read_checkpoint(name, config, gated=model.gated, size_gb=size)


async def _read_config(model: ModelAvailability) -> dict[str, Any]:
    if not (model.folder or model.access.ok):
        raise DflashError(
            f"{model.repo} cannot be read: {model.access}",
            evidence=model.detail,
            hint=model_lookup.advise_access(model),
        )
    try:
        if model.folder:
            text = model_lookup.read_config_file(Path(model.folder))
        else:
            text = await client.fetch_config(model.repo, model.commit or model.revision)
        config = untrusted_json.decode_untrusted(text, _DECODER, one_line=True)
    except (OSError, HubAccessError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _no_config(model.repo, str(error)) from None
    if not isinstance(config, dict):
        raise _no_config(model.repo, "it is not a JSON object")
    return config


def _no_config(name: str, evidence: str) -> DflashError:
    do = "vLLM serves checkpoints with a config.json and safetensors; a GGUF repository has none"
    return DflashError(f"{name} has no config.json that can be read", evidence=evidence, hint=do)
