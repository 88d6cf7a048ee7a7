"""Samples one answer token by token, from a step of the script or from the distribution."""

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from evener.engines.scripted.control import Control
from evener.engines.scripted.distribution import CONTEXT_IDS, Distribution, Permutation
from evener.engines.scripted.requests import GenerateBody
from evener.engines.scripted.script import GATE, Step, Wait
from evener.engines.scripted.wire import AnswerEnd, Part, Top, WireToken

YIELD_TOKENS: Final = 256
"""The number of tokens sampled before other answers have their turn."""
OTHER_WEIGHTS: Final = -1
"""The weights behind stale logprobs."""


class Speed(Struct, frozen=True, kw_only=True):
    """The speed of an engine where its script does not set one."""

    seconds_per_token: float = 0.0
    block: int = 1
    """The number of tokens in one event of a stream, at least: a request may ask for more (`stream_interval`)."""


class Disconnect(Exception):
    """Raised to close the connection now."""


class ScriptedAnswer:
    """The tokens of one choice. It grows while `sample` runs, so that an abort keeps the tokens so far."""

    def __init__(
        self,
        request: GenerateBody,
        *,
        distribution: Distribution,
        control: Control,
        speed: Speed,
        end_id: int,
        room: int,
        step: Step | None,
        said: Sequence[int] | None,
        choice: int,
        on_abort: Callable[[Sequence[WireToken]], None] = lambda _: None,
    ) -> None:
        """`said`: the ids of the step (None: draw). `room`: how many tokens fit the context. `on_abort`: called before the end leaves."""
        self.request_id: Final = request.request_id
        self.tokens: Final[list[WireToken]] = []
        self.labels: Final[list[str]] = []
        """The true label of the weights for each token."""
        self.end: AnswerEnd | None = None
        self._choice: Final = choice
        self._on_abort: Final = on_abort
        self._params: Final = request.sampling_params
        self._sampling: Final = request.sampling_params.sampling()
        self._bias: Final = {int(token): by for token, by in (request.sampling_params.logit_bias or {}).items()}
        self._context: Final = list(request.token_ids[-CONTEXT_IDS:])
        self._distribution: Final = distribution
        self._control: Final = control
        self._end_id: Final = end_id
        self._said: Final = said
        self._room: Final = min(room, self._params.max_tokens or room, room if said is None else len(said))
        self._step: Final = step or Step()
        self._block: Final = self._step.block or speed.block
        self._together: Final = max(self._block, self._params.stream_interval or 1)
        paced = self._step.seconds_per_token
        self._interval: Final = speed.seconds_per_token if paced is None else paced
        self._timed: Final = self._interval > 0 or self._step.delay_ms > 0
        self._start = time.monotonic() + self._step.delay_ms / 1000
        self._aborted = False
        self._stale: Final[list[WireToken]] = []
        seed = self._params.seed
        self._rng: Final = random.Random(None if seed is None else f"{seed}/{choice}")  # noqa: S311 (repeatable on purpose)

    @property
    def immediate(self) -> bool:
        """Whether the answer is sampled at once, without any wait."""
        step = self._step
        return self._room <= YIELD_TOKENS and not (
            self._interval or step.delay_ms or step.wait or step.fail == "hang" or self._control.paused
        )

    def abort(self) -> None:
        """End the answer. The caller wakes it up."""
        self._aborted = True

    async def sample(self) -> AsyncGenerator[list[Part], None]:
        """Yield lists of the parts that are due together, each of at most a block of tokens. The last part has the end. Raises Cut."""
        given = 0
        waits = not self.immediate
        while self.end is None and not self._aborted and len(self.tokens) < self._room:
            if waits and self._waits():
                if (ready := self._ready(given)) > given:
                    yield self._parts(given, ready)
                    given = ready
                await self._wait()
            if not self._aborted:
                self._take()
        broken = None if self._aborted else self._step.fail
        if broken is None or broken == "abort":
            self.end = self._abort() if self._aborted or broken else self.end or AnswerEnd("length")
        else:
            self.end = None
        if parts := self._parts(given, len(self.tokens)):
            yield parts
        if broken == "cut":
            raise Disconnect
        if broken == "hang":
            await self._control.until(lambda: self._aborted)
            self.end = self._abort()
            yield [self._part(len(self.tokens), len(self.tokens))]

    def _abort(self) -> AnswerEnd:
        self._on_abort(self.tokens)
        return AnswerEnd("abort")

    def whole(self) -> Part:
        """Return the answer as one part."""
        return self._part(0, len(self.tokens))

    def _ready(self, given: int) -> int:
        """Return how many tokens may leave before the end: with a stream interval the first token, then whole intervals."""
        count = len(self.tokens)
        if self._together == self._block or count == 0:
            return count
        begun = max(given, 1)
        return begun + (count - begun) // self._together * self._together

    def _parts(self, given: int, count: int) -> list[Part]:
        """Return the parts after the first `given` tokens, up to `count`. An end without tokens is a part too."""
        if given == count:
            return [self._part(count, count)] if self.end else []
        first = 1 if given == 0 and self._together > self._block else self._together  # with a stream interval it comes alone
        stops = [*range(given + first, count, self._together), count]
        return [self._part(start, stop) for start, stop in pairwise([given, *stops])]

    def _part(self, start: int, stop: int) -> Part:
        last = stop == len(self.tokens)
        wrong = self._step.version
        return Part(
            choice=self._choice,
            ids=[token.token_id for token in self.tokens[start:stop]],
            tokens=self._reported(start, stop, last=last and self.end is not None),
            end=self.end if last else None,
            labels=self.labels if wrong is None else [wrong] * len(self.labels),
        )

    def _reported(self, start: int, stop: int, *, last: bool) -> list[WireToken]:
        match self._step.report:
            case "shifted":
                return [self.tokens[max(position - 1, 0)] for position in range(start, stop)]
            case "stale":
                return self._stale[start:stop]
            case "short" if last:
                return self.tokens[start : stop - 1]
            case _:
                return self.tokens[start:stop]

    def _waits(self) -> bool:
        """Return whether the next token has to wait for something."""
        count = len(self.tokens)
        return (
            self._control.holding
            or (self._timed and self._due(count) > time.monotonic())
            or (bool(self._step.wait) and self._gate(count + 1) is not None)
            or (count % YIELD_TOKENS == 0 and count > 0)
        )

    def _due(self, count: int) -> float:
        """Return when the token after `count` others may come: with the first one of its block. Late tokens catch up."""
        return self._start + count // self._block * self._block * self._interval

    async def _wait(self) -> None:
        """Wait for the time, then for the gate, then for the end of a pause. An abort ends all three waits."""
        count = len(self.tokens)
        left = self._due(count) - time.monotonic() if self._timed else 0
        if left > 0:
            await self._control.until(self._is_aborted, seconds=left)
        else:
            await asyncio.sleep(0)
        began = time.monotonic()
        gate = self._gate(count + 1)
        if gate is not None:
            await self._control.at(gate, self._is_aborted)
        if self._control.holding:
            await self._control.until(lambda: self._aborted or not self._control.holding)
        self._start += time.monotonic() - began  # a gate or a pause is not made up for

    def _is_aborted(self) -> bool:
        return self._aborted

    def _gate(self, number: int) -> str | None:
        """Return the gate before a token. Tokens are counted from 1."""
        waits = self._step.wait
        if waits == "each":
            return GATE if number > 1 else None
        return next((wait.gate for wait in waits if isinstance(wait, Wait) and wait.before == number), None)

    def _take(self) -> None:
        """Sample a token, and set the end if it is the last."""
        order = self._distribution.after(self._context, self._control.weights)
        token = self._draw(order) if self._said is None else self._said[len(self.tokens)]
        self.tokens.append(self._report(order, token))
        if self._step.report == "stale":
            self._stale.append(self._report(self._distribution.after(self._context, OTHER_WEIGHTS), token))
        self.labels.append(self._control.label)
        self._context.append(token)
        if token == self._end_id and not self._params.ignore_eos:
            self.end = AnswerEnd("stop")
        elif self._params.stop_token_ids and token in self._params.stop_token_ids:
            self.end = AnswerEnd("stop", token)

    def _draw(self, order: Permutation) -> int:
        if self._bias:
            return max(self._bias, key=lambda token: self._bias[token])
        return self._distribution.draw(order, self._sampling, self._rng)

    def _report(self, order: Permutation, token: int) -> WireToken:
        logprob, rank = self._distribution.logprob(order, token)
        top = [Top(token, logprob, rank)]
        asked = self._params.logprobs or 0
        if asked > 1:  # vLLM puts the sampled token first and cuts the list to the number asked for
            ranked = enumerate(self._distribution.top(order, asked), 1)
            top += [Top(id_, each, position) for position, (id_, each) in ranked if id_ != token][: asked - 1]
        return WireToken(token, logprob, rank, top)
