"""The scripted engine: vLLM's endpoints with a real tokenizer, answers from a script, and a ledger of all ids.

    async with scripted_engine(script, tokenizer) as server:
        engine = VllmEngine(server.url)
        ...
        assert server.ledger[0].fed_ids == ...

It is also a program: `evener engine scripted --script FILE --port N`. docs/engines.md describes the script language.
"""

from evener.engines.scripted.ledger import LedgerEntry
from evener.engines.scripted.script import Rule, Script, ScriptError, Step, ToolCall, Wait
from evener.engines.scripted.server import ScriptedServer, scripted_engine

__all__ = ["LedgerEntry", "Rule", "Script", "ScriptError", "ScriptedServer", "Step", "ToolCall", "Wait", "scripted_engine"]
