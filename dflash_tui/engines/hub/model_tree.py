"""Find drafters of a model in the hub's model tree: repositories whose cards name it as their base model."""

from __future__ import annotations

import asyncio
import itertools
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from dflash_tui.engines.hub import cache, client, model_lookup
from dflash_tui.engines.hub.client import Access, HubAccessError
from dflash_tui.planning.derivation.checkpoint import read_checkpoint
from dflash_tui.planning.derivation.pair import look_up_drafter
from dflash_tui.planning.field_types import VllmVersion
from dflash_tui.planning.methods import Method

if TYPE_CHECKING:
    from huggingface_hub import HfApi

MOST_DRAFTERS = 12
"""How many repositories are asked for their config.json."""
# By downloads, of thousands for a model that many quantize; one answer of the hub.
_MOST_LISTED = 1000
_QUANTIZED = "base_model:quantized:"
# Of a name or a tag. Its config.json decides: most assistants draft for nobody.
_DRAFTS = re.compile(r"d-?flash|d-?spark|eagle|speculat|draft|assistant|mtp|medusa|hass\b")
_CONFIG = msgspec.json.Decoder(dict[str, Any])


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
            candidates = await client.ask_hub(partial(_list_candidates, model))
            drafters = await asyncio.gather(*(_read_drafter(name, gated=gated) for name, gated in candidates.items()))
    except TimeoutError:
        raise HubAccessError(Access.UNREACHABLE, f"no answer within {client.TIMEOUT:.0f} s") from None
    return [drafter for drafter in drafters if drafter]


def _list_candidates(model: str, hub: HfApi) -> dict[str, bool]:
    """Return those that may be drafters by their names and tags, and whether each is gated."""
    tags = hub.model_info(model, expand=["tags"], timeout=client.TIMEOUT).tags or []
    bases = [model, *(tag.removeprefix(_QUANTIZED) for tag in tags if tag.startswith(_QUANTIZED))]
    found: dict[str, bool] = {}
    for base in bases[:2]:
        listed = hub.list_models(
            filter=f"base_model:{base}", sort="downloads", limit=_MOST_LISTED, expand=["tags", "gated"]
        )
        for other in listed:
            own_tags = (tag for tag in other.tags or () if ":" not in tag)
            words = " ".join([other.id.rpartition("/")[2], *own_tags]).lower()
            if other.id not in bases and "gguf" not in words and _DRAFTS.search(words):
                found.setdefault(other.id, bool(other.gated))
    return dict(itertools.islice(found.items(), MOST_DRAFTERS))


async def _read_drafter(name: str, *, gated: bool) -> TreeDrafter | None:
    """Return what a repository's config.json makes of it; None where it is no drafter, or nothing tells."""
    try:
        config = _CONFIG.decode(await client.fetch_small_file(name, "main", "config.json"))
    except HubAccessError as error:
        return TreeDrafter(name, gated=True) if gated and error.access is not Access.UNREACHABLE else None
    except msgspec.MsgspecError:
        return None
    kind = look_up_drafter(read_checkpoint(name, config))
    return TreeDrafter(name, kind.method, kind.since, gated) if kind else None
