"""Asks a verifier over HTTP, such as `/verify` of a NeMo Gym resource server.

Options: `endpoint`, a name of the evaluator's `endpoints`; `body`, a JSON file of the task whose object is sent. The request has, beside
its fields, those of the session (`evener.graders.session.facts`), and `response`: the agent's last message in the form of OpenAI Responses.
The answer is an object with `reward`, `rewards` or both, and `call_rewards` where calls have rewards of their own.
"""

import asyncio
from typing import Any, Final

import msgspec

from evener.graders.asking import ask, endpoint_of
from evener.graders.port import Grade, GraderRefused, GradingContext
from evener.graders.session import facts, grade_of
from evener.graders.task_files import task_file

_objects: Final = msgspec.json.Decoder(dict[str, Any])


async def grade(context: GradingContext) -> Grade:
    """Grade as `http`."""
    endpoint = endpoint_of(context)
    trajectory = context.trajectory
    body = await _body(context) | facts(trajectory) | {"response": _response(trajectory.session_id, trajectory.answer)}
    return grade_of(trajectory, await ask(context, endpoint, endpoint.url, body))


async def _body(context: GradingContext) -> dict[str, Any]:
    file = context.trajectory.spec.grader.options.get("body")
    if file is None:
        return {}
    data = await task_file(context, file)
    try:
        return await asyncio.to_thread(_objects.decode, data)
    except msgspec.DecodeError as cause:
        msg = f"grader `http`: {file} of the task is not a JSON object: {cause}"
        raise GraderRefused(msg) from cause


def _response(session_id: str, answer: str | None) -> dict[str, Any]:
    text = {"type": "output_text", "text": answer or "", "annotations": []}
    message = {"id": f"msg_{session_id}", "type": "message", "role": "assistant", "status": "completed", "content": [text]}
    return {
        "id": f"resp_{session_id}",
        "object": "response",
        "created_at": 0,
        "model": "policy",
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }
