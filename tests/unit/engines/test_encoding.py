"""Long requests to engines are encoded while the loop goes on."""

import threading
from contextlib import aclosing

import msgspec
import numpy as np
import pytest

from evener.engines.connection import SHORT_IDS
from evener.engines.port import EngineUnreachable, GenerateRequest
from evener.engines.vllm import VllmEngine
from evener.engines.vllm_chat import VllmChatEngine
from evener.proto.spec import Sampling

SHORT = GenerateRequest(
    request_id="r1", ids=np.zeros(SHORT_IDS, np.int32), sampling=Sampling(), max_tokens=4, messages=({"role": "user", "content": "hi"},)
)
LONG = msgspec.structs.replace(SHORT, ids=np.zeros(SHORT_IDS + 1, np.int32))
WITH_IMAGE = msgspec.structs.replace(SHORT, images={"digest": ("image/png", b"pixels")})


@pytest.mark.parametrize("kind", [VllmEngine, VllmChatEngine])
@pytest.mark.parametrize(("request_", "beside"), [(SHORT, False), (LONG, True), (WITH_IMAGE, True)])
async def test_loop_continues_while_a_long_request_is_encoded(
    kind: type[VllmEngine | VllmChatEngine], request_: GenerateRequest, *, beside: bool
) -> None:
    """A call of 64 answers to a prompt of 60,000 ids stopped it for 40 ms and more; a short one waits for no thread."""
    threads: list[threading.Thread] = []

    class Watched(kind):  # type: ignore[misc, valid-type]
        def _streamed(self, request: GenerateRequest) -> bytes:
            threads.append(threading.current_thread())
            encoded: bytes = super()._streamed(request)
            return encoded

    engine = Watched("http://127.0.0.1:1")
    async with aclosing(engine), aclosing(engine.generate(request_)) as chunks:
        with pytest.raises(EngineUnreachable):
            await anext(chunks)
    assert [thread is not threading.main_thread() for thread in threads] == [beside]
