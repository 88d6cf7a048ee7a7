"""Make a tiny random model in a folder: Qwen3-shaped, 512 ids, a byte-level BPE tokenizer, about 1 MB. For tests of real engines.

    python scripts/tiny_model.py FOLDER [--seed N] [--tied]

Needs numpy and tokenizers only. The same folder comes out each time; another seed gives other weights of the same model. Embeddings are
not tied unless asked for: vLLM 0.32 for CPU reloads tied ones wrongly.
"""

import argparse
import json
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 512
HIDDEN, MLP, LAYERS, HEADS, KV_HEADS, HEAD = 64, 128, 2, 4, 2, 32
CONTEXT = 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CORPUS = (
    "The agent reads the file, writes the answer and stops.",
    "What is the sum of the numbers in the table? The sum is the answer.",
    "user assistant system tool call name arguments result error the and that with from this have",
)
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": MLP,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "max_position_embeddings": CONTEXT,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def tokenizer() -> Tokenizer:
    """Return a byte-level BPE of exactly VOCABULARY ids; the special tokens are 0, 1 and 2."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = [AddedToken(name, special=True, normalized=False) for name in SPECIAL]
    made.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            min_frequency=1,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fill = VOCABULARY - made.get_vocab_size()
    made.add_tokens([AddedToken(f"<|unused{index}|>") for index in range(fill)])
    return made


def weights(seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Return random float32 weights by name; logits come out with a spread of about 2."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, spread: float) -> NDArray[np.float32]:
        return rng.normal(0, spread, (rows, columns)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, HIDDEN, 1.0),
        "model.norm.weight": np.ones(HIDDEN, np.float32),
        "lm_head.weight": matrix(VOCABULARY, HIDDEN, 0.25),
    }
    tensors["lm_head.weight"][: len(SPECIAL)] = 0  # seldom sampled: long answers
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes = {
            "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
            "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
            "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
            "mlp.gate_proj": (MLP, HIDDEN),
            "mlp.up_proj": (MLP, HIDDEN),
            "mlp.down_proj": (HIDDEN, MLP),
        }
        tensors |= {f"{at}{name}.weight": matrix(*shape, 0.1) for name, shape in shapes.items()}
        norms = {"input_layernorm": HIDDEN, "post_attention_layernorm": HIDDEN, "self_attn.q_norm": HEAD, "self_attn.k_norm": HEAD}
        tensors |= {f"{at}{name}.weight": np.ones(size, np.float32) for name, size in norms.items()}
    return tensors


def save_safetensors(tensors: dict[str, NDArray[np.float32]], path: Path) -> None:
    """Write the safetensors format: length of the header (u64), JSON header, raw little-endian data."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": [at, at + tensor.nbytes]}
        at += tensor.nbytes
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensor.tobytes() for tensor in tensors.values()))


def make(folder: Path, *, seed: int = 0, tied: bool = False) -> None:
    """Write the model, its configuration and its tokenizer into `folder`. `tied`: the output matrix is the embedding."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"tie_word_embeddings": tied}, indent=2))
    tokenizer().save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2))
    tensors = weights(seed)
    if tied:
        del tensors["lm_head.weight"]
        tensors["model.embed_tokens.weight"] *= 0.25
    save_safetensors(tensors, folder / "model.safetensors")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tied", action="store_true")
    asked = parser.parse_args()
    make(asked.folder, seed=asked.seed, tied=asked.tied)
