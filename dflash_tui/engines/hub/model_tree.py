"""Find drafters of a model in the hub's model tree: repositories whose cards name it as their base model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from dflash_tui.common import untrusted_json
from dflash_tui.common.untrusted_json import register_type
from dflash_tui.engines.hub import cache, client, model_lookup
from dflash_tui.engines.hub.client import Access, HubAccessError
from dflash_tui.planning.derivation import pair
from dflash_tui.planning.derivation.checkpoint import read_checkpoint
from dflash_tui.planning.field_types import VllmVersion
from dflash_tui.planning.methods import Method

T = TypeVar("T")

MOST_DRAFTERS = 12
"""How many repositories are asked for their config.json."""
# By downloads, of thousands for a model that many quantize; one answer of the hub.
_MOST_LISTED = 1000
_QUANTIZED = "base_model:quantized:"
# Of a name or a tag. Its config.json decides: most assistants draft for nobody.
_DRAFTS = re.compile(r"d-?flash|d-?spark|eagle|speculat|draft|assistant|mtp|medusa|hass\b")


class ListedModel(msgspec.Struct, frozen=True):
    """A repository as the hub lists it; nothing of it is checked yet."""

    id: str
    tags: list[str] = []
    gated: bool | str | None = None


register_type(ListedModel)
_MODEL = msgspec.json.Decoder(ListedModel)
_CONFIG = msgspec.json.Decoder(dict[str, Any])
_MODELS = msgspec.json.Decoder(list[ListedModel])


class TreeDrafter(msgspec.Struct, frozen=True):
    """A drafter that the hub's model tree has for a model."""

    repo: str
    """Its repository."""
    method: Method | None = None
    """How it drafts, by its config.json; None where that may not be read."""
    oldest_vllm: VllmVersion | None = None
    """The first release that has it; None where each from 0.20.0 on does, or it is not known."""
    gated: bool = False
    """Whether its terms have to be accepted."""


async def find_tree_drafters(model: str) -> list[TreeDrafter]:
    """Return the drafters of a repository and, where it is a quantized one, of what it was made from.

    The most downloaded come first, `MOST_DRAFTERS` at most. Listings and configurations are read, nothing is kept.

    Raises:
        HubAccessError: the hub refuses, may not be asked, or did not answer within ten seconds.
    """
    if cache.find_local_folder(model) or not model_lookup.is_repository(model):
        return []
    try:
        async with asyncio.timeout(client.TIMEOUT):
            return await _find_drafters(model)
    except TimeoutError:
        raise HubAccessError(Access.UNREACHABLE, f"no answer within {client.TIMEOUT:.0f} s") from None


async def _find_drafters(model: str) -> list[TreeDrafter]:
    itself = _decode(await client.fetch_description(model, "tags"), _MODEL)
    bases = [model, *(tag.removeprefix(_QUANTIZED) for tag in itself.tags if tag.startswith(_QUANTIZED))]
    named = [base for base in bases[:2] if model_lookup.is_repository(base)]
    listed = [listed_model for base in named for listed_model in _decode(await _list_tree(base), _MODELS)]
    drafters = await asyncio.gather(
        *(_read_drafter(listed_model) for listed_model in _choose_candidates(listed, bases))
    )
    return [drafter for drafter in drafters if drafter]


async def _list_tree(base: str) -> bytes:
    wanted = f"filter=base_model:{quote(base, safe='/')}&sort=downloads&direction=-1&limit={_MOST_LISTED}"
    return await client.list_models(f"{wanted}&expand[]=tags&expand[]=gated")


def _choose_candidates(listed: Iterable[ListedModel], bases: list[str]) -> list[ListedModel]:
    """Return those that may be drafters by their names and tags, each once."""
    by_name: dict[str, ListedModel] = {}
    for model in listed:
        words = " ".join([model.id.rpartition("/")[2], *(tag for tag in model.tags if ":" not in tag)]).lower()
        if model_lookup.is_repository(model.id) and "gguf" not in words and _DRAFTS.search(words):
            by_name.setdefault(model.id.lower(), model)
    return [model for name, model in by_name.items() if name not in map(str.lower, bases)][:MOST_DRAFTERS]


async def _read_drafter(model: ListedModel) -> TreeDrafter | None:
    """Return what a repository's config.json makes of it; None where it is no drafter, or nothing tells."""
    gated = model.gated not in {None, False}
    try:
        config = untrusted_json.decode_untrusted(
            await client.fetch_small_file(model.id, "main", "config.json"), _CONFIG, one_line=True
        )
    except HubAccessError as error:
        return TreeDrafter(model.id, gated=True) if gated and error.access is not Access.UNREACHABLE else None
    except msgspec.MsgspecError:
        return None
    kind = pair.look_up_drafter(read_checkpoint(model.id, config))
    return TreeDrafter(model.id, kind.method, kind.since, gated) if kind else None


def _decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return untrusted_json.decode_untrusted(body, decoder, one_line=True)
    except msgspec.MsgspecError as error:
        evidence = client.quote_hub_text(f"not an answer of the hub: {error}")
        raise HubAccessError(Access.UNREACHABLE, evidence) from None
