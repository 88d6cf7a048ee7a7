"""The scripted engine's own model: a next-token distribution that is known exactly, at no cost. Pure.

Every context gives the same probabilities (Zipf's law over all ids) to another permutation of the ids: rank r belongs to the id
`(start + step * r) mod V`, where start and step come from a hash of the last ids. So the logprob of any id is one table look-up.
"""

import hashlib
import math
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from evener.proto.spec import Sampling

CONTEXT_IDS: Final = 16
"""Ids that the distribution depends on."""


class Distribution:
    """Logprobs and draws for a vocabulary of V ids."""

    def __init__(self, size: int) -> None:
        """`size`: V, at least 2."""
        self.size: Final = size
        weights = -np.log(np.arange(2, size + 2, dtype=np.float64))
        self._logprobs: Final = weights - np.logaddexp.reduce(weights)
        self._table = lru_cache(maxsize=64)(self._cumulative)

    def top(self, context: Sequence[int], count: int) -> list[tuple[int, float]]:
        """Return the `count` most likely ids and their logprobs at temperature 1."""
        start, step = self._permutation(context)
        return [((start + step * rank) % self.size, float(self._logprobs[rank])) for rank in range(min(count, self.size))]

    def logprob(self, context: Sequence[int], token: int) -> tuple[float, int]:
        """Return the logprob of an id at temperature 1, and its rank from 1."""
        start, step = self._permutation(context)
        rank = (token - start) * pow(step, -1, self.size) % self.size
        return float(self._logprobs[rank]), rank + 1

    def draw(self, context: Sequence[int], sampling: Sampling, rng: random.Random) -> int:
        """Return an id drawn as the parameters say; temperature 0 is the most likely one."""
        start, step = self._permutation(context)
        if sampling.temperature == 0:
            return start
        table = self._table(sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
        rank = int(np.searchsorted(table, rng.random() * table[-1], side="right"))
        return (start + step * rank) % self.size

    def _cumulative(self, temperature: float, top_p: float, top_k: int, min_p: float) -> NDArray[np.float64]:
        """Return cumulative probabilities by rank, as far as the filters leave any. Temperature comes first, as in vLLM."""
        tempered = np.exp((self._logprobs - self._logprobs[0]) / temperature)
        kept = int(np.count_nonzero(tempered >= min_p)) if min_p else self.size
        kept = min(kept, top_k or kept)
        cumulative = np.cumsum(tempered[:kept])
        within = int(np.searchsorted(cumulative, top_p * cumulative[-1] * (1 - 1e-12))) + 1
        return cumulative[:within]

    def _permutation(self, context: Sequence[int]) -> tuple[int, int]:
        """Return start and a step that is coprime to V."""
        digest = hashlib.blake2b(np.asarray(context[-CONTEXT_IDS:], dtype="<i8").tobytes(), digest_size=16).digest()
        start = int.from_bytes(digest[:8], "little") % self.size
        step = int.from_bytes(digest[8:], "little") % self.size
        while math.gcd(step, self.size) != 1:
            step += 1
        return start, step
