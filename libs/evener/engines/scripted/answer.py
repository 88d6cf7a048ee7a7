"""One answer being sampled: token by token, from a rule or from the distribution."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import Final

from evener.engines.scripted.distribution import CONTEXT_IDS, Distribution
from evener.engines.scripted.script import Rule
from evener.engines.scripted.wire import End, Request, Token


class Cut(Exception):
    """The connection is to be closed now."""


class Answer:
    """What one choice samples; `tokens` and `labels` grow while `sample` runs, so that an abort leaves what there was."""

    def __init__(
        self,
        request: Request,
        *,
        distribution: Distribution,
        label: Callable[[], str],
        end_id: int,
        room: int,
        said: Sequence[int] | None,
        rule: Rule | None,
        choice: int,
    ) -> None:
        """`said`: the ids of the rule (None: draw); `room`: tokens that fit the context; `label`: the weights' label, now."""
        self.tokens: Final[list[Token]] = []
        self.labels: Final[list[str]] = []
        self.end: End | None = None
        self._params = request.sampling_params
        self._context = list(request.token_ids[-CONTEXT_IDS:])
        self._distribution = distribution
        self._label = label
        self._end_id = end_id
        self._room = min(room, self._params.max_tokens or room)
        self._said = said
        self._rule = rule
        seed = self._params.seed
        self._rng = random.Random(None if seed is None else f"{seed}/{choice}")  # noqa: S311 (repeatable on purpose)

    async def sample(self) -> AsyncGenerator[Token, None]:
        """Yield the tokens; `end` is set before the last one is yielded. Raises Cut."""
        rule = self._rule or Rule()
        if rule.delay_ms:
            await asyncio.sleep(rule.delay_ms / 1000)
        held: Token | None = None
        for token in self._drawn() if self._said is None else iter(self._said):
            if held is not None:
                yield held
                await asyncio.sleep(rule.per_token_ms / 1000)
            held = self._take(token)
            if self.end is not None:
                break
        self.end = None if rule.fail else self.end or End("length")
        if held is not None:
            yield held
        if rule.fail == "cut":
            raise Cut
        if rule.fail == "hang":
            await asyncio.Event().wait()

    def _drawn(self) -> Iterator[int]:
        bias = {int(token): by for token, by in (self._params.logit_bias or {}).items()}
        while True:
            if bias:
                yield max(bias, key=lambda token: bias[token])
            else:
                yield self._distribution.draw(self._context, self._params.sampling(), self._rng)

    def _take(self, token: int) -> Token:
        """Append a token to the answer, and set the end if it is the last."""
        top = [
            (id_, logprob, rank) for rank, (id_, logprob) in enumerate(self._distribution.top(self._context, self._params.logprobs or 0), 1)
        ]
        logprob, rank = self._distribution.logprob(self._context, token)
        # vLLM puts the sampled token first and cuts the list to the number asked for
        top = [(token, logprob, rank), *(each for each in top if each[0] != token)][: max(self._params.logprobs or 0, 1)]
        taken = Token(token, logprob, rank, top)
        self.tokens.append(taken)
        self.labels.append(self._label())
        self._context = [*self._context[1 - CONTEXT_IDS :], token]
        if token == self._end_id and not self._params.ignore_eos:
            self.end = End("stop")
        elif token in (self._params.stop_token_ids or ()):
            self.end = End("stop", token)
        elif len(self.tokens) >= self._room:
            self.end = End("length")
        return taken
