"""Asks a server without speculation for the log-probabilities of tokens, decoded one by one or read all at once."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dflash_tui.benchmark.sse import quote_server_text
from dflash_tui.common import bounded_http
from dflash_tui.common.untrusted_json import register_type

# The likeliest tokens that are asked for at each position.
_CANDIDATES = 5
# The server's logits of all positions are in memory at once: of 1,024 with 262,144 tokens 1 GiB in float32.
MOST_POSITIONS = 1024
_TIMEOUT, _READING = 30.0, 1800.0
_ID_PREFIX = "token_id:"
Scores = Mapping[int, float]
"""The log-probability (natural logarithm) of the likeliest tokens at a position, and of the token that stands there."""


class _Score(msgspec.Struct):
    logprob: float


class _DecodedScores(msgspec.Struct):
    top_logprobs: list[dict[str, float]]


class _Choice(msgspec.Struct):
    token_ids: list[int] | None = None
    logprobs: _DecodedScores | None = None
    prompt_logprobs: list[dict[str, _Score] | None] | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice]


register_type(_Completion)


class TokenScorer:
    """Asks one server about the tokens of answers, greedily and for log-probabilities before any sampling.

    Each method raises `bounded_http.BadResponse` or one of `bounded_http.list_failures()`.
    """

    def __init__(self, url: str, model: str, key: str = "") -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._client = bounded_http.open_client(url, timeout=_TIMEOUT, reading=_READING, headers=headers)
        self._model = model

    async def __aenter__(self) -> TokenScorer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def decode(self, prompt: Sequence[int], count: int) -> tuple[list[int], list[Scores]]:
        """Return `count` tokens that follow on the prompt, decoded one at a time, and the scores at each."""
        named = {"return_token_ids": True, "return_tokens_as_token_ids": True}
        choice = await self._ask(prompt, count, {"logprobs": _CANDIDATES, "ignore_eos": True, **named})
        tokens, scored = choice.token_ids or [], choice.logprobs.top_logprobs if choice.logprobs else []
        if not len(tokens) == len(scored) == count:
            raise bounded_http.BadResponse("the server did not score the tokens that it decoded")
        return tokens, [
            {int(name.removeprefix(_ID_PREFIX)): score for name, score in scores.items()} for scores in scored
        ]

    async def read(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[Scores]:
        """Return the scores at each of `tokens`, which follow on the prompt, all computed in one step."""
        choice = await self._ask([*prompt, *tokens], 1, {"prompt_logprobs": _CANDIDATES})
        scored = (choice.prompt_logprobs or [])[len(prompt) :]
        if len(scored) != len(tokens):
            raise bounded_http.BadResponse("the server did not score the tokens of the prompt")
        return [{int(token): score.logprob for token, score in (scores or {}).items()} for scores in scored]

    async def _ask(self, prompt: Sequence[int], count: int, more: dict[str, Any]) -> _Choice:
        body = {"model": self._model, "prompt": prompt, "max_tokens": count, "temperature": 0.0}
        response = await self._client.post("/v1/completions", json=body | {"repetition_penalty": 1.0} | more)
        if response.status_code != 200:
            what = f"HTTP {response.status_code}: {quote_server_text(response.text)}"
            raise bounded_http.BadResponse(what, response.status_code)
        try:
            return msgspec.json.decode(response.content, type=_Completion).choices[0]
        except (msgspec.MsgspecError, IndexError) as error:
            raise bounded_http.BadResponse(f"not a completion: {error}") from None


def measure_gaps(tokens: Sequence[int], scores: Sequence[Scores]) -> list[float]:
    """Return by how much the log-probability of each token is below that of the likeliest at its position."""
    return [max(scored.values()) - scored[token] for token, scored in zip(tokens, scores, strict=True)]


def measure_shifts(tokens: Sequence[int], decoded: Sequence[Scores], read: Sequence[Scores]) -> list[float]:
    """Return by how much the lead of each token over its runner-up differs between two computations of the scores.

    A position whose runner-up is among the likeliest of one computation only is left out.
    """
    shifts = []
    for token, decoded_scores, read_scores in zip(tokens, decoded, read, strict=True):
        runner_up = max(
            (other for other in decoded_scores if other != token), key=decoded_scores.__getitem__, default=None
        )
        if runner_up is not None and {token, runner_up} <= decoded_scores.keys() & read_scores.keys():
            leads = (scored[token] - scored[runner_up] for scored in (decoded_scores, read_scores))
            shifts.append(abs(operator.sub(*leads)))
    return shifts
