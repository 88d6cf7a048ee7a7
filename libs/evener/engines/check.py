"""Checks an engine at start: its tokenizer must be the policy's, and its logprobs those of what it samples. Others cannot be trained on.

The draws are judged by Hoeffding's bound (1963, theorem 1): for n independent events of mean probability p, a share of at least a > p has a
probability of at most exp(-n KL(a || p)), and likewise below. So a false alarm is rarer than FALSE_ALARM, for any model.
"""

import asyncio
import math
from collections.abc import Sequence
from contextlib import aclosing
from typing import Final

import numpy as np

from evener.engines.answers import whole
from evener.engines.port import PROBE_PREFIX, Engine, EngineRefused, EngineUnreachable, GenerateRequest, LogprobRule
from evener.proto.spec import Sampling
from evener.templates.port import Renderer

TOKENIZER_TEXTS: Final = (
    "Plain words, and a full stop.",
    "1234567890 12345678901234567890 3.14159 0x7fff 1,000,000",
    "  12   345\n\n6\t\t7 x  8 -9  +10\n    11: 12,\n\n\n13",
    "I'm sure they'll say we've it's won't DON'T",
    "mixed \t tabs\t\t and   spaces \r\n lines \n\n\n ends  ",
    "日本語と中文、한국어",
    "ภาษาไทยไม่มีช่องว่าง",
    "🤖🦄 👩‍👩‍👧‍👦 🇺🇳 👍🏽",
    "naïve café — Ünïcödé ﬁ Å e\u0301",
    "שלום עולם مرحبا بالعالم",
    "nul\0in the middle \x01\x7f",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|><tool_call>{}</tool_call>",
    "<| im_start |> <|nothing|> </s> [INST]",
    "def f(x: int) -> dict[str, int]:\n    return {'a': x**2, \"b\": x != 3}  # ok\n",
    "https://example.org/a_b?c=%20&d=~#e {{braces}} \\n \\u00e9 $HOME",
    "zero\u200bwidth\u00a0space\ufeff",
)
"""Texts on which tokenizers with different rules disagree."""
OPEN_ENDED: Final = ("qz vlk 83 !! Ω", "My favourite is", "x")
"""Prompts that allow many continuations."""
DRAWS: Final = 96
TOGETHER: Final = 4
TOP: Final = 16
RANKS: Final = (1, 4, TOP)
"""The counted events: the drawn id was among this many most likely ones."""
FALSE_ALARM: Final = 1e-6
TOLERANCE: Final = 0.15
"""The largest accepted difference of logprobs, in nats. Quantised kernels differ by this much between a cached and a computed prefix."""
OTHER_TEMPERATURE: Final = 2.0
ALIGNED_TOKENS: Final = 6
ENGINE_CHECK_SECONDS: Final = 120.0


async def check_engine(engine: Engine, renderer: Renderer) -> LogprobRule:
    """Return the settings for which the engine's logprobs are those of what it samples.

    Raises EngineRefused naming what differs, and what the engine raises.
    """
    try:
        async with asyncio.timeout(ENGINE_CHECK_SECONDS):
            await compare_tokenizers(engine, renderer)
            prompts = [renderer.encode(text, special=True) for text in OPEN_ENDED]
            await _compare_reports(engine, prompts[0])
            rule = await _find_rule(engine, prompts[0])
            await _compare_draws(engine, prompts, temperature=1.0)
            if rule.any_temperature:
                await _compare_draws(engine, prompts, temperature=0.5)
            return rule
    except TimeoutError as cause:
        msg = f"the check at start took more than {ENGINE_CHECK_SECONDS:.0f} s"
        raise EngineUnreachable(msg) from cause


async def compare_tokenizers(engine: Engine, renderer: Renderer) -> None:
    """Check that an engine has a policy's tokenizer. Raises EngineRefused naming what differs, and what the engine raises."""
    ends = b"|".join(renderer.pieces(renderer.stop_ids)).decode(errors="replace")
    for text in (*TOKENIZER_TEXTS, f"a{ends}b {ends}"):
        ours, theirs = renderer.encode(text, special=True), await engine.tokenize(text)
        if ours != theirs:
            position = next(
                (at for at, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), min(len(ours), len(theirs))
            )
            msg = (
                f"the tokenizers differ on {text!r}: from token {position} on the engine has {theirs[position : position + 5]}, "
                f"the policy {ours[position : position + 5]}"
            )
            raise EngineRefused(msg)


async def _compare_reports(engine: Engine, prompt: Sequence[int]) -> None:
    """Check that each id of an answer has a logprob, and that it matches the distribution at its position."""
    ids = np.asarray(prompt, np.int32)
    request = GenerateRequest(request_id=f"{PROBE_PREFIX}-reports", ids=ids, sampling=Sampling(seed=1), max_tokens=ALIGNED_TOKENS)
    async with aclosing(engine.generate(request)) as chunks:
        answer = await whole(chunks)
    if not len(answer.ids) == len(answer.logprobs) == len(answer.versions) > 0:
        msg = f"{len(answer.ids)} ids came with {len(answer.logprobs)} logprobs and {len(answer.versions)} versions"
        raise EngineRefused(msg)
    for position, (token, logprob) in enumerate(zip(answer.ids.tolist(), answer.logprobs.tolist(), strict=True)):
        if not math.isfinite(logprob) or logprob > TOLERANCE / 100:
            msg = f"the sampled id {token} has the logprob {logprob}"
            raise EngineRefused(msg)
        _, top = await engine.top_logprobs(np.concatenate([ids, answer.ids[:position]]), Sampling(seed=1), TOP)
        if abs(top.get(token, logprob) - logprob) > TOLERANCE:
            msg = f"the sampled id {token} has the logprob {logprob:.3f}, the distribution at its position says {top[token]:.3f}"
            raise EngineRefused(msg)


async def _find_rule(engine: Engine, prompt: Sequence[int]) -> LogprobRule:
    """Request one distribution with several settings, and find which settings change the reported logprobs."""
    ids = np.asarray(prompt, np.int32)

    async def reported(sampling: Sampling) -> dict[int, float]:
        _, top = await engine.top_logprobs(ids, sampling, TOP)
        return {token: logprob for token, logprob in top.items() if math.isfinite(logprob)}

    raw, hot = await reported(Sampling(seed=1)), await reported(Sampling(seed=1, temperature=OTHER_TEMPERATURE))
    filters = (Sampling(seed=1, top_k=1), Sampling(seed=1, top_p=0.01), Sampling(seed=1, min_p=0.99))
    filtered = [await reported(sampling) for sampling in filters]
    return LogprobRule(
        any_temperature=_after_temperature(raw, hot),
        filters=all(max(top.values()) > -TOLERANCE / 100 for top in filtered),
    )


def _after_temperature(raw: dict[int, float], hot: dict[int, float]) -> bool:
    """Return whether the second distribution is the first one after OTHER_TEMPERATURE. False: both are the same."""
    common = raw.keys() & hot.keys()
    if not common:
        msg = f"at temperature {OTHER_TEMPERATURE} the engine reports other ids as the most likely ones than at 1"
        raise EngineRefused(msg)
    best = max(common, key=lambda token: raw[token])
    if max(abs(hot[token] - raw[token]) for token in common) <= TOLERANCE:
        return False
    if max(abs((hot[token] - hot[best]) - (raw[token] - raw[best]) / OTHER_TEMPERATURE) for token in common) <= TOLERANCE:
        return True
    msg = f"at temperature {OTHER_TEMPERATURE} the reported logprobs are neither the raw ones nor those after temperature"
    raise EngineRefused(msg)


async def _compare_draws(engine: Engine, prompts: Sequence[Sequence[int]], *, temperature: float) -> None:
    """Check that the samples follow the reported distribution."""
    limit = asyncio.Semaphore(TOGETHER)

    async def draw(number: int) -> tuple[int, dict[int, float]]:
        ids = np.asarray(prompts[number * len(prompts) // DRAWS], np.int32)
        async with limit:
            return await engine.top_logprobs(ids, Sampling(temperature=temperature, seed=number + 1), TOP)

    drawn = await asyncio.gather(*(draw(number) for number in range(DRAWS)))
    for rank in RANKS:
        best = [sorted(top, key=lambda token: -top[token])[:rank] for _, top in drawn]
        expected = sum(math.exp(top[token]) for ids, (_, top) in zip(best, drawn, strict=True) for token in ids) / DRAWS
        share = sum(token in ids for ids, (token, _) in zip(best, drawn, strict=True)) / DRAWS
        if DRAWS * _divergence(share, expected) > math.log(2 * len(RANKS) / FALSE_ALARM):
            how = "more sharply" if share > expected else "more evenly"
            msg = (
                f"asked for temperature {temperature:g} without filters, the engine samples {how} than it reports, as if with another "
                f"temperature or a filter: {share:.0%} of {DRAWS} draws were among the {rank} most likely ids, "
                f"which its logprobs expect of {expected:.0%}"
            )
            raise EngineRefused(msg)


def _divergence(share: float, expected: float) -> float:
    """Return the Kullback-Leibler divergence, in nats, of two Bernoulli distributions."""
    p = min(max(expected, 1e-9), 1 - 1e-9)
    parts = ((share, p), (1 - share, 1 - p))
    return sum(one * math.log(one / other) for one, other in parts if one > 0)
