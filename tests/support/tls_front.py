"""A front of an engine: TLS, and a key that every request must carry, as hosted engines have."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
from aiohttp import web

JSON = {"content-type": "application/json"}


@asynccontextmanager
async def tls_front(url: str, certificate: str, key: str, api_key: str) -> AsyncIterator[str]:
    """Serve the server at `url` over TLS; yield the front's URL. Requests without the API key are answered 401."""
    async with aiohttp.ClientSession() as behind:

        async def passed_on(request: web.Request) -> web.StreamResponse:
            if request.headers.get("authorization") != f"Bearer {api_key}":
                return web.Response(status=401, text="this engine wants its key")
            body = await request.read()
            async with behind.request(
                request.method, url + request.path_qs, data=body, headers={"content-type": "application/json"}
            ) as found:
                answer = web.StreamResponse(status=found.status, headers={"content-type": found.headers["content-type"]})
                await answer.prepare(request)
                async for part in found.content.iter_any():
                    await answer.write(part)
                await answer.write_eof()
                return answer

        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", passed_on)
        runner = web.AppRunner(app)
        await runner.setup()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        try:
            yield f"https://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
