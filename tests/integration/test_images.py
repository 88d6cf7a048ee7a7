"""Images in requests: placed and stored where policy and engine see, refused with a clear error where they do not."""

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.integration.test_gateway import rebuilt
from tests.support.gateway import POLICY, Hand, gateway

from evener.engines.scripted import Rule, Script
from evener.proto.reasons import ExclusionReason
from evener.proto.sessions import CallFailed, CallOpened, SessionSealed
from evener.provider_gateway.config import Config

SCRIPT = Script(default=Rule(say="A cat."))
PIXELS = b"\x89PNG not really"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text if p.type == 'text' else '<image>' }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def looking(text: str = "What is this?") -> list[dict[str, Any]]:
    url = f"data:image/png;base64,{base64.b64encode(PIXELS).decode()}"
    return [{"role": "user", "content": [{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": url}}]}]


def seeing(folder: Path) -> Config:
    (folder / "template.jinja").write_text(TEMPLATE)
    return Config(policies=(msgspec.structs.replace(POLICY, template=str(folder / "template.jinja"), vision=True),))


async def use_chat_path(hand: Hand, *, vision: bool) -> None:
    await hand.leave_fleet("e1")
    await hand.join("e2", hand.engine.url, kind="vllm_chat", vision=vision)
    await hand.engines("e2")


async def test_image_is_placed_stored_once_and_kept_out_of_training(tmp_path: Path) -> None:
    """Rows cannot carry images yet: tokens sampled after an image are counted under that reason."""
    async with gateway(tmp_path, SCRIPT, config=seeing(tmp_path)) as hand:
        await use_chat_path(hand, vision=True)
        capability = await hand.start("s1")
        said = await hand.say(capability, looking())
        await hand.say(capability, [*looking(), said, {"role": "user", "content": "Sure?"}])
        first, second = [event for event in await hand.log("s1") if isinstance(event, CallOpened)]
        (ref,) = first.images
        assert ref.digest == hashlib.sha256(PIXELS).hexdigest()
        assert await hand.context.blobs.get(ref) == PIXELS
        assert second.images == ()
        assert second.placement.root is None or second.history_base is not None
        await hand.exit("s1")
        await hand.until("s1", SessionSealed)
        accounting = (await rebuilt(hand, "s1")).accounting
        assert accounting.delivered == 0
        assert accounting.excluded.keys() == {ExclusionReason.IMAGE}


@pytest.mark.parametrize("engine_sees", [True, False])
async def test_image_is_refused_where_the_policy_or_its_engine_has_no_vision(tmp_path: Path, engine_sees: bool) -> None:  # noqa: FBT001
    """One clear sentence and the status that ends a harness, never an answer about a picture that nobody saw."""
    async with gateway(tmp_path, SCRIPT, config=None if engine_sees else seeing(tmp_path)) as hand:
        await use_chat_path(hand, vision=engine_sees)
        answer = await hand.ask(await hand.start("s1"), looking())
        assert answer.status == 400
        who = "the engine of this policy" if not engine_sees else "this policy"
        place = "messages[0].content[1].image_url.url"
        error = json.loads(answer.body)["error"]
        assert (error["message"], error["param"]) == (f"{place}: {who} has no vision; send text only", place)
        assert [event.reason for event in await hand.log("s1") if isinstance(event, CallFailed)] == ([] if engine_sees else ["refused"])
