"""The real Pi CLI behind the relay. Its first run here installs it (npm)."""

from pathlib import Path

import pytest
from tests.integration.test_runner import bench
from tests.support.frames_gateway import cut_after_admission, overloaded, refuse, reply

from evener.proto.reasons import ExitCause
from evener.proto.sessions import HarnessExited, SessionStarted
from evener.proto.spec import HarnessSpec

pytestmark = [pytest.mark.pi, pytest.mark.usefixtures("npm")]
PI = HarnessSpec(name="pi", options={"context_tokens": "4096"})


async def test_pi_uses_its_tools_and_keeps_the_history_append_only(tmp_path: Path) -> None:
    """Its own `write` tool, a gateway that is overloaded and one that dies under it, its final answer."""
    async with bench(tmp_path, trust_local=True) as b:
        writing = reply(tool=("write", {"path": "note.txt", "content": "from pi"}))
        b.gateway.script = [overloaded, writing, overloaded, cut_after_admission, reply("done")]
        await b.dispatch(harness=PI)
        exited = await b.until(HarnessExited)
        started = await b.until(SessionStarted)

        assert (exited.cause, exited.exit_code, exited.detail) == (ExitCause.EXITED, 0, "")
        assert await b.changed(exited) == {"app/note.txt": b"from pi"}
        assert (started.harness_version or "").startswith("0.87.1+")
        refused, first, refused_too, second, again = b.gateway.seen
        assert first.body["stream"]
        assert [tool["function"]["name"] for tool in first.body["tools"]] == ["read", "bash", "edit", "write"]
        assert second.body["messages"][: len(first.body["messages"])] == first.body["messages"]
        assert second.body["messages"][-1]["tool_call_id"] == f"call{first.request_id}"
        assert (again.request_id, again.body) == (second.request_id, second.body)
        assert (refused.request_id, refused_too.request_id) == (first.request_id, second.request_id)  # Pi itself tried once


async def test_pi_that_failed_is_not_taken_for_finished(tmp_path: Path) -> None:
    """JSON mode exits with 0; the last stop reason tells."""
    async with bench(tmp_path, trust_local=True) as b:
        b.gateway.script = [refuse(400, "this session's budget is spent")]
        await b.dispatch(harness=PI)
        exited = await b.until(HarnessExited)

        assert (exited.cause, exited.exit_code) == (ExitCause.EXITED, 1)
        assert "budget is spent" in exited.detail
