"""Reads the tokenizer and chat template of a Hugging Face folder: tokenizer.json and the configuration files beside it."""

from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import Tokenizer

from evener.templates.port import TemplateError
from evener.templates.source import ModelSource

_objects: Final = msgspec.json.Decoder(dict[str, Any])


def load(folder: Path) -> ModelSource:
    """Return the tokenizer and chat template of a folder. Raises TemplateError."""
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as cause:  # the tokenizer library raises nothing narrower
        msg = f"reading {folder / 'tokenizer.json'}: {cause}"
        raise TemplateError(msg) from cause
    config = _json(folder / "tokenizer_config.json")
    constants = {key: text for key, value in config.items() if key.endswith("_token") and (text := _spelling(value)) is not None}
    return ModelSource(
        tokenizer=tokenizer, template=_template(folder, config), constants=constants, eos_ids=_eos_ids(folder, tokenizer, constants)
    )


def _json(path: Path) -> dict[str, Any]:
    try:
        return _objects.decode(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.MsgspecError) as cause:
        msg = f"reading {path}: {cause}"
        raise TemplateError(msg) from cause


def _spelling(value: Any) -> str | None:
    """Return the text of a special token, which the file gives as a string or as an object."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _template(folder: Path, config: dict[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    try:
        return file.read_text() if file.exists() else _spelling(config.get("chat_template"))
    except (OSError, ValueError) as cause:
        msg = f"reading {file}: {cause}"
        raise TemplateError(msg) from cause


def _eos_ids(folder: Path, tokenizer: Tokenizer, constants: dict[str, str]) -> tuple[int, ...]:
    """Return the ids that generation_config.json and the tokenizer's eos name."""
    listed = _json(folder / "generation_config.json").get("eos_token_id", [])
    ids = [listed] if isinstance(listed, int) else list(listed or [])
    eos = tokenizer.token_to_id(constants["eos_token"]) if "eos_token" in constants else None
    return tuple(dict.fromkeys([*ids, *([] if eos is None else [eos])]))
