"""Make the policy that training starts from: a vocabulary, a Qwen3 shape of about a million parameters, a supervised start.

    python examples/learn_pi/start.py RECORDED.json FOLDER [--seed N]        # needs torch and transformers

Right demonstrations come first: short ones, until names and numbers are copied, then all kinds, until they are there, too. Spoilt ones
come last: with them from the first step copying does not appear.
"""

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import torch
import vocabulary
from demonstrations import Demonstration, Recorded, demonstrations
from tasks import NAMES, TOLD, Payload, payloads
from tokenizers import Tokenizer
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import Qwen3Config, Qwen3ForCausalLM


class Phase(NamedTuple):
    """Steps at most, and demonstrations in each."""

    steps: int
    batch: int


LEARNING_RATE: Final = 3e-3
CLIP: Final = 1.0
CORPUS: Final = 1500
COPIED: Final = 0.97
"""Share of right demonstrations' answers that must be likeliest throughout, before the next phase."""
SHORT, ALL, SPOILT = Phase(500, 32), Phase(400, 16), Phase(120, 16)
LOOK_EVERY: Final = 20


def shape(vocabulary_size: int) -> Qwen3Config:
    """Return the configuration. Embeddings are not tied: vLLM 0.32 for CPU reloads tied ones wrongly."""
    return Qwen3Config(
        vocab_size=vocabulary_size,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=vocabulary.END_OF_TURN,
        pad_token_id=0,
    )


def encoded(tokenizer: Tokenizer, one: Demonstration) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids[T] and mask[T]: 1 where an answer is learnt. Each piece is encoded alone, as it is when the policy is sampled."""
    ids, mask = [], []
    for turn in one.turns:
        for learnt, text in enumerate(turn):
            piece = tokenizer.encode(text, add_special_tokens=False).ids
            ids += piece
            mask += [learnt] * len(piece)
    return torch.tensor(ids), torch.tensor(mask)


def loss_and_right(model: Qwen3ForCausalLM, tokenizer: Tokenizer, batch: list[Demonstration]) -> tuple[torch.Tensor, float]:
    """Return the mean negative logprob of answers' tokens, and the share of demonstrations of which all of them were likeliest."""
    pairs = [encoded(tokenizer, one) for one in batch]
    ids = pad_sequence([ids for ids, _ in pairs], batch_first=True)
    learnt = pad_sequence([mask for _, mask in pairs], batch_first=True)[:, 1:].bool()
    logits = model.lm_head(model.model(ids[:, :-1]).last_hidden_state[learnt])
    wanted = ids[:, 1:][learnt]
    missed = torch.zeros(len(batch))
    missed[learnt.nonzero()[:, 0][logits.argmax(-1) != wanted]] = 1
    return cross_entropy(logits, wanted), 1 - missed.mean().item()


def run(model: Qwen3ForCausalLM, tokenizer: Tokenizer, stream: Iterator[Demonstration], phase: Phase, *, until: float = 2.0) -> int:
    """Train for some steps, or until enough are right throughout LOOK_EVERY steps; return the steps taken."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    right = []
    for step in range(1, phase.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, step / 20)
        loss, share = loss_and_right(model, tokenizer, list(islice(stream, phase.batch)))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        right.append(share)
        recent = sum(right[-LOOK_EVERY:]) / LOOK_EVERY
        if step % LOOK_EVERY == 0:
            print(f"  step {step}: loss {loss.item():.3f}, all likeliest in {recent:.2f}", flush=True)
        if recent >= until:
            return step
    return phase.steps


def start(recorded: list[Recorded], folder: Path, seed: int) -> None:
    """Make the policy and write it as a Hugging Face folder."""
    began = time.monotonic()
    torch.manual_seed(seed)
    train, _ = payloads()
    texts = [one.text for one in islice(demonstrations(recorded, train, seed, noisy=True), CORPUS)]
    said = [
        answer.replace("{written}", "{payload}").replace("{file}", "out.txt")
        for one in recorded
        for answer in one.answers
        if "{written}" in answer
    ]
    tokenizer = vocabulary.largest_that_copies(texts, [TOLD["write"], "{payload}\n", *said], [str(Payload(name, 42)) for name in NAMES])
    vocabulary.save(tokenizer, folder)
    model = Qwen3ForCausalLM(shape(tokenizer.get_vocab_size()))
    prompt = len(tokenizer.encode(recorded[0].fed[0]).ids)
    print(f"{tokenizer.get_vocab_size()} entries; Pi's first prompt has {prompt} tokens; {model.num_parameters():,} parameters", flush=True)
    short = [one for one in recorded if one.harness == "script"]
    for name, kinds, noisy, phase in (("short", short, False, SHORT), ("all", recorded, False, ALL), ("spoilt", recorded, True, SPOILT)):
        stream = demonstrations(kinds, train, seed + phase.steps, noisy=noisy)
        steps = run(model, tokenizer, stream, phase, until=2.0 if noisy else COPIED)
        model.save_pretrained(folder)
        print(f"{name}: {steps} steps, {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recorded", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    start(msgspec.json.decode(asked.recorded.read_bytes(), type=list[Recorded]), asked.folder, asked.seed)
