"""Reads the tables of quotas in the settings file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from actors.ports.settings.settings_checks import check_keys
from actors.runtime.quotas import COSTS, Quota, QuotaSettings, fair_share
from server.auth.principals import LOCAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from actors.runtime.quotas import Limits
    from server.auth.issuers.issuer_tables import Issuer
    from server.auth.principals import Principal

MOST = 2**53


def quota_settings(
    together: Any, defaults: Any, principals: Mapping[str, Principal], issuers: Mapping[str, Issuer]
) -> QuotaSettings:
    """Read the quotas in [quotas], [principal_defaults.quotas] and the tables of principals and of issuers' templates.

    The quotas of a principal, or those of its issuer's template, override the defaults key by key. Only [quotas], the
    limits of all callers together, applies to the server's own user. If there are principals or issuers, and no default
    for concurrent model requests is set, each principal may have a share of those that [quotas] allows. Raises
    ValueError with a text such as "quotas.concurrent_runs: why".
    """
    if not isinstance(defaults, dict) or defaults.keys() - {"quotas"}:
        raise ValueError("principal_defaults: must be a table with the key quotas")
    of_all = limits("quotas", together)
    each = limits("principal_defaults.quotas", defaults.get("quotas", {}))
    if principals or issuers:
        share = fair_share(of_all.get(Quota.CONCURRENT_MODEL_REQUESTS, 0))
        each = {Quota.CONCURRENT_MODEL_REQUESTS: share, **each}
    named = {
        name: {**each, **limits(f"principals.{name}.quotas", principal.quotas)}
        for name, principal in principals.items()
        if principal.quotas
    }
    of_templates = {
        name: {**each, **limits(f"issuers.{name}.template.quotas", issuer.template.quotas)}
        for name, issuer in issuers.items()
        if issuer.template is not None and issuer.template.quotas
    }
    own_user: dict[str, Limits] = {LOCAL: {}} if each else {}
    return QuotaSettings(of_all, each, {**named, **own_user}, of_templates)


def limits(where: str, table: Any) -> Limits:
    """Read one table of quotas, in which 0 means no limit. `where` is the name of the table.

    Raises ValueError with a text such as "WHERE.concurrent_runs: why".
    """
    if not isinstance(table, dict):
        raise ValueError(f"{where}: must be a table, [{where}]")
    known = {quota.value: quota for quota in Quota}
    check_keys(where, table, known)
    return {known[name]: _limit(f"{where}.{name}", known[name], value) for name, value in table.items()}


def _limit(where: str, quota: Quota, value: Any) -> int:
    kinds = (int, float) if quota in COSTS else (int,)
    if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value <= MOST:
        what = "dollars" if quota in COSTS else "a whole number"
        raise ValueError(f"{where}: must be {what}, 0 for no limit")
    return round(value * 1_000_000) if quota in COSTS else int(value)
