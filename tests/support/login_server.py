"""An MCP server that wants a login, with its authorization server, which can misbehave in every way that matters."""

import base64
import hashlib
import itertools
import json
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from tests.support.patience import PATIENCE

TOOLS = [{"name": "add", "description": "Add.", "inputSchema": {"type": "object"}}]


@dataclass
class Ways:
    """How it misbehaves."""

    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Replaces entries of the authorization server's metadata; None removes one."""
    protected: dict[str, Any] = field(default_factory=dict[str, Any])
    """Replaces entries of the MCP server's metadata."""
    tokens: dict[str, Any] = field(default_factory=dict[str, Any])
    """Replaces entries of what the token endpoint answers."""
    token_status: int = 0
    """What the token endpoint answers instead; 307 leads elsewhere."""
    token_hangs: threading.Event | None = None
    """Until when the token endpoint does not go on with its answer."""
    led: dict[str, str] = field(default_factory=dict[str, str])
    """Replaces parameters of the address that the browser is led back to."""
    registrations: int = 0
    """How many clients must have been registered before the token endpoint knows one."""
    open: bool = False
    """Whether it wants no login."""


class LoginServer:
    """Listens on this machine until the end of a `with`; the person at the browser is `browse`."""

    def __init__(self, ways: Ways | None = None, certificate: tuple[Path, Path] | None = None) -> None:
        """`certificate`: with its key, for https."""
        self.ways = ways or Ways()
        self.valid: set[str] = set()
        """The access tokens that are taken."""
        self.refresh: set[str] = set()
        self.used: set[str] = set()
        """The refresh tokens that were valid: whoever sends one again loses all."""
        self.given: set[str] = set()
        """The access tokens that were sent to the MCP server."""
        self.codes: dict[str, dict[str, str]] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        """Paths and forms of all POST requests to the authorization server."""
        self.refreshed = 0
        self.calls = 0
        """Tool calls that were carried out."""
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        owner = self

        class Handler(_Handler):
            server_of = owner

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*certificate)
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.address = f"http{'s' if certificate else ''}://127.0.0.1:{self._http.server_address[1]}"
        self.url = f"{self.address}/mcp"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._thread.join(PATIENCE)
        self._http.server_close()

    def browse(self, address: str, **changed: str) -> str:
        """Log in as a person would; return the address that the browser is led to."""
        asked = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(address).query))
        assert address.startswith(f"{self.address}/authorize?")
        assert (asked["code_challenge_method"], asked["response_type"]) == ("S256", "code")
        assert asked["resource"] == self.url
        code = f"code-{next(self._numbers)}"
        self.codes[code] = asked
        led = {"code": code, "state": asked["state"], "iss": self.address} | self.ways.led | changed
        return f"{asked['redirect_uri']}?{urllib.parse.urlencode({k: v for k, v in led.items() if v})}"

    def token(self, form: dict[str, str]) -> tuple[int, dict[str, Any]]:
        """Answer at the token endpoint, with refresh tokens that are valid once."""
        if self.registered < self.ways.registrations:
            return 401, {"error": "invalid_client"}
        with self._lock:
            if form["grant_type"] == "refresh_token":
                if form["refresh_token"] in self.used:
                    self.valid.clear()
                    self.refresh.clear()
                if form["refresh_token"] not in self.refresh:
                    return 400, {"error": "invalid_grant"}
                if not self.ways.tokens:
                    self.refresh.remove(form["refresh_token"])
                    self.used.add(form["refresh_token"])
                self.refreshed += 1
            else:
                asked = self.codes.pop(form["code"], None)
                digest = hashlib.sha256(form["code_verifier"].encode()).digest()
                challenge = base64.urlsafe_b64encode(digest).decode().rstrip("=")
                if (
                    asked is None
                    or asked["code_challenge"] != challenge
                    or asked["redirect_uri"] != form["redirect_uri"]
                ):
                    return 400, {"error": "invalid_grant"}
            number = next(self._numbers)
            access, refresh = f"access-secret-{number}", f"refresh-secret-{number}"
            given: dict[str, Any] = {"access_token": access, "token_type": "bearer", "expires_in": 3600}
            given |= {"refresh_token": refresh} | self.ways.tokens
            self.valid.add(given["access_token"])
            self.refresh.add(refresh)
        return 200, given

    @property
    def registered(self) -> int:
        """How many clients have been registered."""
        return sum(path == "/register" for path, _ in self.seen)

    def rpc(self, method: str, _params: Any) -> Any:
        """Answer a request of MCP, of the version with a handshake."""
        if method == "initialize":
            info = {"name": "fake", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        if method == "tools/list":
            return {"tools": TOOLS}
        if method == "tools/call":
            self.calls += 1
            return {"content": [{"type": "text", "text": "5"}]}
        return None


class _Handler(BaseHTTPRequestHandler):
    server_of: LoginServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        owner = self.server_of
        if self.path.startswith("/.well-known/oauth-protected-resource"):
            self._json(200, {"resource": owner.url, "authorization_servers": [owner.address]} | owner.ways.protected)
        elif self.path.startswith("/.well-known/oauth-authorization-server"):
            found = {
                "issuer": owner.address,
                "authorization_endpoint": f"{owner.address}/authorize",
                "token_endpoint": f"{owner.address}/token",
                "registration_endpoint": f"{owner.address}/register",
                "revocation_endpoint": f"{owner.address}/revoke",
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
            }
            kept = {key: value for key, value in (found | owner.ways.metadata).items() if value is not None}
            self._json(200, kept)
        else:
            self._json(405 if self.path.startswith("/mcp") else 404, {})

    def do_POST(self) -> None:
        owner = self.server_of
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/mcp":
            self._mcp(json.loads(body))
            return
        if self.path == "/register":
            owner.seen.append((self.path, {}))
            self._json(201, {**json.loads(body), "client_id": "registered"})
            return
        form = dict(urllib.parse.parse_qsl(body.decode()))
        owner.seen.append((self.path, form))
        if self.path == "/revoke":
            owner.refresh.discard(form["token"])
            self._json(200, {})
            return
        if (hangs := owner.ways.token_hangs) is not None:
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"{")
            hangs.wait(PATIENCE)
            self.close_connection = True
        elif owner.ways.token_status:
            self._json(owner.ways.token_status, {"error": "server_error"}, {"location": "http://127.0.0.2:9/token"})
        else:
            self._json(*owner.token(form))

    def do_DELETE(self) -> None:
        self._json(405, {})

    def _mcp(self, message: dict[str, Any]) -> None:
        owner = self.server_of
        token = self.headers.get("authorization", "").removeprefix("Bearer ")
        owner.given.add(token)
        if not owner.ways.open and token not in owner.valid:
            where = f'Bearer resource_metadata="{owner.address}/.well-known/oauth-protected-resource/mcp"'
            self._json(401, {"error": "unauthorized"}, {"www-authenticate": where})
        elif "id" not in message:
            self._json(202, None)
        elif (result := owner.rpc(message["method"], message.get("params"))) is None:
            missing = {"code": -32601, "message": "there is no such method"}
            self._json(200, {"jsonrpc": "2.0", "id": message["id"], "error": missing})
        else:
            self._json(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        for key, text in {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **(headers or {}),
        }.items():
            self.send_header(key, text)
        self.end_headers()
        self.wfile.write(body)


def opened(address: str) -> tuple[int, str]:
    """Open an address as a browser does; return the status and the page."""
    try:
        with urllib.request.urlopen(address, timeout=PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
