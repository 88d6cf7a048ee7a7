"""The policy's vocabulary: BPE that splits at newlines and digits only, so that a whole line of Pi's prompt becomes a few tokens."""

import json
import re
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TURN: Final = SPECIAL.index("<|im_end|>")
APART: Final = re.compile("|".join(map(re.escape, SPECIAL)))
"""Learnt from, a special token's spelling would become the token itself: then nobody could write it as text."""
LARGEST: Final = 2400
SMALLEST: Final = 400
STEP: Final = 50


def train(texts: Iterable[str], size: int) -> Tokenizer:
    """Return a vocabulary of at most `size` entries, learnt from texts; without texts it has single bytes alone."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("\n"), "isolated"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    special = [AddedToken(name, special=True, normalized=False) for name in SPECIAL]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator((piece for text in texts for piece in APART.split(text)), trainer)
    return made


def largest_that_copies(texts: Sequence[str], contexts: Sequence[str], payloads: Sequence[str]) -> Tokenizer:
    """Return the largest vocabulary in which a payload has the same tokens in every context. Raises ValueError if there is none.

    `contexts` hold `{payload}`. A vocabulary that is too large swallows the words around a payload: then it cannot be copied.
    """
    for size in range(LARGEST, SMALLEST - 1, -STEP):
        vocabulary = train(texts, size)
        if all(spelled_alike(vocabulary, contexts, payload) for payload in payloads):
            return vocabulary
    msg = f"no vocabulary of {SMALLEST} to {LARGEST} entries spells all payloads alike in all contexts"
    raise ValueError(msg)


def spelled_alike(vocabulary: Tokenizer, contexts: Sequence[str], payload: str) -> bool:
    """Return whether a payload's first word is the same run of tokens in all contexts."""
    word = payload.split(maxsplit=1)[0]
    spellings = set()
    for context in contexts:
        text = context.replace("{payload}", payload)
        start = text.index(word)
        encoded = vocabulary.encode(text, add_special_tokens=False)
        inside = [n for n, (first, last) in enumerate(encoded.offsets) if first < start + len(word) and last > start]
        whole = encoded.offsets[inside[0]][0] == start
        spellings.add(tuple(encoded.ids[n] for n in inside) if whole else context)
    return len(spellings) == 1


def save(vocabulary: Tokenizer, folder: Path) -> None:
    """Write tokenizer and chat template (ChatML, hermes calls) as a Hugging Face folder has them."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": SPECIAL[END_OF_TURN], "pad_token": SPECIAL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    (folder / "chat_template.jinja").write_text((files("evener.templates") / "bundled" / "chatml_tools.jinja").read_text())
