"""The settings of the server: the values that `server.settings.loading` has read and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from actors.ports.sandbox import DENY_READ, SYSTEM_PATHS, WORKSPACE_PROTECTED
from actors.runtime.quotas import QuotaSettings
from server.auth.authorizer.authorizer_tables import AuthorizerSettings
from server.auth.issuers.issuer_tables import Issuer
from server.auth.principals import Principal
from server.cluster.cluster_tables import ClusterSettings
from server.settings.setting_values import USUAL_LISTEN, ConfigError, Listen, Listener


@dataclass(frozen=True, kw_only=True)
class Config:
    """All settings of the server, with defaults filled in and values checked."""

    data_dir: Path
    database: str = field(default="", repr=False)
    """The URL of a PostgreSQL database; "" for SQLite in `data_dir`.

    It may contain a password, so it is never shown.
    """
    listen: Listen | None = USUAL_LISTEN
    """The address to listen on besides the Unix socket in the data directory; None for no other address."""
    listen_tables: tuple[Listener, ...] = ()
    """The addresses of the tables [[listen]] in the settings file; they are used if `listen` is None."""
    log_level: str = "info"
    default_model: str = ""
    """The default model of conversations; "" for the default model of the first provider."""
    small_model: str = ""
    """The model for small requests beside the conversation, for example for its title.

    "none" means no such requests, "" a small model of the conversation's provider.
    """
    titles: bool = True
    """Whether a conversation without a title gets one from its first message."""
    drain_seconds: float = 10.0
    """How many seconds runs may continue during a graceful shutdown."""
    idle_seconds: float = 30.0
    """How many seconds an idle conversation keeps its threads."""
    max_streams: int = 10_000
    """The maximum number of streams that are open at the same time."""
    retention_events_days: float = 0.0
    """How many days events are kept; 0 for ever. Messages are always kept."""
    retention_events_min: int = 10_000
    """How many of the latest events of each conversation are kept, regardless of their age."""
    retention_archived_days: float = 0.0
    """How many days archived conversations are kept; 0 for ever."""
    retention_audit_days: float = 90.0
    """How many days refused calls and deletions stay in the audit trail; 0 for no time limit.

    In either case, only the latest 100,000 of these entries are kept.
    """
    reflection: bool = False
    """Whether the server offers gRPC reflection, by which tools like grpcurl list its methods."""
    tls_certificate: Path | None = None
    """The PEM file with the certificate and its chain, for the address in `listen`; None for no TLS."""
    tls_key: Path | None = None
    insecure_behind_proxy: bool = False
    """Whether a proxy or a mesh in front of the server encrypts and restricts access, so that the server needs no TLS.

    The client's address is then taken from a header that the proxy sends.
    """
    metrics_listen: Listen | None = None
    """The address at which Prometheus gets metrics by HTTP; None if no metrics are served."""
    otlp_endpoint: str = ""
    """The URL of a collector for traces and metrics, by OTLP over gRPC; "" for no collector."""
    otlp_contents: tuple[str, ...] = ()
    """The names of those span attributes with conversation contents that the operator allows the collector to get."""
    sandbox: str = "auto"
    """How strictly the machine must be able to restrict tools: "A", "B", "none", or "auto" for the best it can do.

    A uses namespaces, B only Landlock and seccomp.
    """
    workspace_protected: tuple[str, ...] = WORKSPACE_PROTECTED
    """The names of files and directories that tools in workspace mode cannot change, besides .git."""
    deny_read: tuple[str, ...] = DENY_READ
    """Files and directories that tools cannot read, in every mode in which the sandbox can hide them."""
    system_paths: tuple[str, ...] = SYSTEM_PATHS
    """Files and directories of the system that the tools of every principal can read."""
    cpus: frozenset[int] | None = None
    """The CPUs that the server itself runs on; None for all. Its tools may use all CPUs in any case."""
    file: Path | None = None
    """The settings file; None if there is none."""
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    """The model providers in the settings file, by name. They may contain keys, so they are never shown."""
    models: Mapping[str, Any] = field(default_factory=dict)
    """Context windows and prices of models in the settings file, by prefix of the model's name."""
    mcp_servers: tuple[Mapping[str, Any], ...] = field(default=(), repr=False)
    """The MCP servers in the settings file. They may contain secrets, so they are never shown."""
    approval_rules: tuple[Mapping[str, Any], ...] = ()
    """The operator's approval rules in the settings file, not parsed yet."""
    principals: Mapping[str, Principal] = field(default_factory=dict)
    """The principals in the settings file, by name, without the server's own user."""
    quotas: QuotaSettings = field(default_factory=QuotaSettings)
    """The quotas in the settings file: of each principal, and of all principals together."""
    client_certificates: Mapping[str, Principal] = field(default_factory=dict)
    """The principals that the settings file assigns to client certificates, by a name in the certificate."""
    authorizer: AuthorizerSettings | None = None
    """The operator's own class for authentication and authorization, from the settings file; None if there is none."""
    cluster: ClusterSettings | None = None
    """How servers that share the database reach each other; None if this server does not share its database."""
    issuers: Mapping[str, Issuer] = field(default_factory=dict)
    """The issuers in the settings file, by name: services that sign tokens of principals."""
    mcp_from_clients: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The table of the settings file that says which MCP servers clients may add to a conversation.

    It may contain secrets, so it is never shown.
    """
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment variables, in which API keys of well-known providers are looked up."""
    origins: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Where each given setting comes from: a flag, an environment variable, or a key of the settings file."""

    def refusal(self, text: str) -> ConfigError:
        """Return the error for a setting that was parsed, but cannot be used. `text` is "NAME: REASON"."""
        setting, _, why = text.partition(": ")
        provider = setting.removeprefix("providers.").rpartition(".")[0]
        tables = (
            "models.",
            "mcp_servers",
            "mcp_from_clients",
            "approval_rules[",
            "principals.",
            "issuers.",
            "quotas",
            "listen[",
            "authorizer.",
            "cluster",
        )
        in_file = setting.startswith(tables) or provider in self.providers
        return ConfigError(f"{self.origins.get(setting, f'{self.file}: {setting}' if in_file else setting)}: {why}")

    def without_extra(self, setting: str, extra: str) -> ConfigError:
        """Return the error for a setting that needs an extra of the package that is not installed."""
        return self.refusal(f"{setting}: needs the extra `{extra}`: `pip install ./clients '.[{extra}]'` in a checkout")

    def check_extra(self, setting: str, extra: str, *modules: str) -> None:
        """Raise ConfigError if one of the modules is not installed, for which a setting needs an extra."""
        for module in modules:
            try:
                found = find_spec(module)
            except ModuleNotFoundError:  # nor is the package of the module
                found = None
            if found is None:
                raise self.without_extra(setting, extra)

    @property
    def several(self) -> bool:
        """Whether there may be other principals than the server's own user."""
        return bool(self.principals or self.issuers)

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The addresses to listen on besides the Unix socket in the data directory."""
        if self.listen is None:
            return self.listen_tables
        proxied = self.insecure_behind_proxy
        return (
            Listener(
                where=self.listen, certificate=self.tls_certificate, key=self.tls_key, insecure_behind_proxy=proxied
            ),
        )

    @property
    def behind_proxy(self) -> bool:
        """Whether every address except Unix sockets is behind a proxy, which sends the client's address in a header."""
        reached = [each for each in self.listeners if not each.where.path]
        return bool(reached) and all(each.insecure_behind_proxy for each in reached)

    @property
    def reachable(self) -> bool:
        """Whether the server listens on an address for callers from the network, who may be strangers."""
        return any(each.certificate or each.insecure_behind_proxy or not each.where.local for each in self.listeners)

    @property
    def tls(self) -> bool:
        """Whether the address in `listen` uses TLS."""
        return self.tls_certificate is not None


def shown_database(url: str) -> str:
    """Return the URL of a database without its password and parameters, which may contain secrets."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql://…"
    who, at, where = parts.netloc.rpartition("@")
    return f"postgresql://{who.partition(':')[0]}{at}{where}{parts.path}"
