"""The scripted engine: vLLM's endpoints with a real tokenizer, saying what a script says, and keeping a ledger of its ids.

    async with scripted_engine(script, tokenizer) as server:
        engine = VllmEngine(server.url)
        ...
        assert server.ledger[0].fed_ids == ...

Or as a program: `evener engine scripted --script FILE --port N`. docs/engines.md has the language of scripts.
"""

from evener.engines.scripted.ledger import Entry
from evener.engines.scripted.script import Rule, Script, ScriptError, Step, ToolCall, Wait
from evener.engines.scripted.server import ScriptedServer, scripted_engine

__all__ = ["Entry", "Rule", "Script", "ScriptError", "ScriptedServer", "Step", "ToolCall", "Wait", "scripted_engine"]
