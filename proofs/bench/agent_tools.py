"""The tools of real CLIs: how a policy spells one and the same act in each of them."""

from collections.abc import Mapping
from typing import Final

from proofs.bench.agent_work import Act, Spell


def pi(act: Act, workdir: str) -> tuple[str, dict[str, object]]:
    """Return Pi's tool and arguments."""
    del workdir
    if act.command:
        return "bash", {"timeout": 20.0, "command": act.command}
    if act.read:
        return "read", {"path": act.read, "offset": float(act.start), "limit": act.lines}
    if act.write:
        return "write", {"path": act.write, "content": act.text}
    return "edit", {"path": act.edit, "edits": [{"oldText": act.old, "newText": act.text}]}


def qwen_code(act: Act, workdir: str) -> tuple[str, dict[str, object]]:
    """Return Qwen Code's tool and arguments; it wants absolute paths."""
    if act.command:
        return "run_shell_command", {"is_background": False, "command": act.command}
    if act.read:
        return "read_file", {"file_path": f"{workdir}/{act.read}", "offset": float(act.start - 1), "limit": act.lines}
    if act.write:
        return "write_file", {"file_path": f"{workdir}/{act.write}", "content": act.text}
    return "edit", {"file_path": f"{workdir}/{act.edit}", "old_string": act.old, "new_string": act.text}


def hermes(act: Act, workdir: str) -> tuple[str, dict[str, object]]:
    """Return Hermes's tool and arguments."""
    del workdir
    if act.command:
        return "terminal", {"timeout": 20, "command": act.command}
    if act.read:
        return "read_file", {"path": act.read, "offset": act.start, "limit": act.lines}
    if act.write:
        return "write_file", {"path": act.write, "content": act.text}
    return "patch", {"path": act.edit, "old_string": act.old, "new_string": act.text}


TOOLS: Final[Mapping[str, Spell]] = {"pi": pi, "qwen_code": qwen_code, "hermes": hermes}
