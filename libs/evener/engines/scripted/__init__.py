"""The scripted engine: vLLM's token endpoints with a real tokenizer, saying what a script says, and keeping a ledger of its ids.

    async with scripted_engine(script, tokenizer) as server:
        engine = VllmEngine(server.url)
        ...
        assert server.ledger[0].fed_ids == ...

Or as a program: `python -m evener.engines.scripted --script FILE --port N`.
"""

from evener.engines.scripted.ledger import Entry
from evener.engines.scripted.script import Rule, Script, ScriptError, ToolCall
from evener.engines.scripted.server import ScriptedServer, scripted_engine

__all__ = ["Entry", "Rule", "Script", "ScriptError", "ScriptedServer", "ToolCall", "scripted_engine"]
