"""The scripted engine's own model: a next-token distribution that is known exactly, at no cost. Pure.

Every context gives the same probabilities (Zipf's law over all ids) to another permutation of the ids: rank r belongs to the id `(start +
step * r) mod V`, where start and step come from a hash of the weights and the last ids. So the logprob of any id is one table look-up, and
other weights give other logprobs.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from evener.proto.spec import Sampling

CONTEXT_IDS: Final = 16
"""The number of last ids that the distribution depends on."""
STEPS: Final = 64
GOLDEN: Final = (math.sqrt(5) - 1) / 2


class Permutation(NamedTuple):
    """Rank r is the id (start + step * r) mod V. `inverse` is the inverse of step."""

    start: int
    step: int
    inverse: int


class Distribution:
    """Logprobs and draws for a vocabulary of V ids."""

    def __init__(self, size: int) -> None:
        """`size`: V, at least 2."""
        self.size: Final = size
        weights = -np.log(np.arange(2, size + 2, dtype=np.float64))
        self._array: Final = weights - np.logaddexp.reduce(weights)
        self._logprobs: Final[list[float]] = self._array.tolist()  # a list: look-ups of one element are most of the work
        self._steps: Final = [_coprime(size, int(size * (GOLDEN * number % 1))) for number in range(1, STEPS + 1)]
        self._table = lru_cache(maxsize=64)(self._cumulative)

    def after(self, context: Sequence[int], weights: int = 0) -> Permutation:
        """Return the order of the ids after a context, under the weights with this number."""
        mixed = hash((weights, *context[-CONTEXT_IDS:]))  # of integers only: the same in every process
        step, inverse = self._steps[mixed // self.size % STEPS]
        return Permutation(mixed % self.size, step, inverse)

    def top(self, order: Permutation, count: int) -> list[tuple[int, float]]:
        """Return the `count` most likely ids and their logprobs at temperature 1."""
        return [((order.start + order.step * rank) % self.size, self._logprobs[rank]) for rank in range(min(count, self.size))]

    def logprob(self, order: Permutation, token: int) -> tuple[float, int]:
        """Return the logprob of an id at temperature 1, and its rank from 1."""
        rank = (token - order.start) * order.inverse % self.size
        return self._logprobs[rank], rank + 1

    def draw(self, order: Permutation, sampling: Sampling, rng: random.Random) -> int:
        """Return an id drawn as the parameters say; temperature 0 is the most likely one."""
        if sampling.temperature == 0:
            return order.start
        table = self._table(sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p)
        rank = bisect_right(table, rng.random() * table[-1])
        return (order.start + order.step * min(rank, len(table) - 1)) % self.size

    def _cumulative(self, temperature: float, top_p: float, top_k: int, min_p: float) -> list[float]:
        """Return cumulative probabilities by rank, for the ranks that the filters leave. Temperature is applied first, as in vLLM."""
        tempered = np.exp((self._array - self._array[0]) / temperature)
        kept = int(np.count_nonzero(tempered >= min_p)) if min_p else self.size
        kept = min(kept, top_k or kept)
        cumulative = np.cumsum(tempered[:kept])
        within = int(np.searchsorted(cumulative, top_p * cumulative[-1] * (1 - 1e-12))) + 1
        return [float(each) for each in cumulative[:within]]


@lru_cache(maxsize=4)
def distribution(size: int) -> Distribution:
    """Return the distribution over V ids, which engines share: making it and its tables takes 20 ms, and it never changes."""
    return Distribution(size)


def _coprime(size: int, near: int) -> tuple[int, int]:
    """Return a number coprime to `size`, at or above `near`, and its inverse."""
    step = max(near, 1)
    while math.gcd(step, size) != 1:
        step += 1
    return step, pow(step, -1, size)
