"""An MCP server behind HTTP, with the official library, that wants a header or an access token."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

from tests.support.patience import PATIENCE

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

TOKEN = "an-access-token-0815"


class WebServer:
    """Listens on this machine until the end of a `with`. Each request to /mcp must have `Authorization: Bearer TOKEN`.

    The token is given out at /token for the client `me` with the secret `pw`.
    """

    def __init__(self, port: int = 0) -> None:
        import uvicorn
        from mcp.server.mcpserver import Context, MCPServer

        from tests.integration.mcp import greeter

        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = int(self._socket.getsockname()[1])
        self.address = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.address}/mcp"
        self.tokens_given = 0
        made = MCPServer("web")

        @made.tool()
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        made.tool()(greeter.greet)
        made.tool()(greeter.welcome)

        @made.tool()
        async def wait() -> str:
            """Wait for ever."""
            self.waiting.set()
            try:
                await asyncio.sleep(1000)
            finally:
                self.ended.set()
            return "never"

        async def grow(ctx: Any) -> str:
            """Offer another tool, and tell those who asked to be told."""
            made.add_tool(add, "more")
            await ctx.notify_tools_changed()
            return "grown"

        grow.__annotations__["ctx"] = Context
        made.add_tool(grow)

        self.waiting, self.ended = threading.Event(), threading.Event()
        self._app = made.streamable_http_app()
        config = uvicorn.Config(
            self._guard, interface="asgi3", log_level="error", lifespan="on", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    async def _guard(self, scope: Scope, receive: Receive, send: Send) -> None:
        from starlette.responses import JSONResponse

        path = scope.get("path", "")
        app: Any = self._app
        if scope["type"] == "http" and path.startswith("/mcp"):
            given = dict(scope["headers"]).get(b"authorization", b"").decode()
            if given != f"Bearer {TOKEN}":
                where = f'Bearer resource_metadata="{self.address}/.well-known/oauth-protected-resource/mcp"'
                app = JSONResponse({"error": "unauthorized"}, 401, {"www-authenticate": where})
        elif path.startswith("/.well-known/oauth-protected-resource"):
            app = JSONResponse({"resource": self.url, "authorization_servers": [self.address]})
        elif path.startswith("/.well-known/"):
            app = JSONResponse(
                {
                    "issuer": self.address,
                    "authorization_endpoint": f"{self.address}/authorize",
                    "token_endpoint": f"{self.address}/token",
                    "response_types_supported": ["code"],
                    "grant_types_supported": ["client_credentials"],
                }
            )
        elif path == "/token":
            given = dict(scope["headers"]).get(b"authorization", b"").decode()
            self.tokens_given += given == "Basic bWU6cHc="
            answer = {"access_token": TOKEN, "token_type": "Bearer", "expires_in": 3600}
            app = JSONResponse(answer if given == "Basic bWU6cHc=" else {"error": "invalid_client"})
        await app(scope, receive, send)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join(PATIENCE)
        self._socket.close()
