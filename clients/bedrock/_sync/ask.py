"""`bedrock.ask`: one question, with a client of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock._sync.client import Client

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from bedrock._shared import requests
    from bedrock.answers import Answer, OnApproval
    from bedrock.types import ApprovalPolicy, Mode


def ask(
    text: str,
    *,
    working_directory: str | os.PathLike[str] | None = None,
    model: str | None = None,
    mode: Mode | None = None,
    approval_policy: ApprovalPolicy | None = None,
    images: requests.ImageSource | Sequence[requests.ImageSource] = (),
    on_approval: OnApproval | None = None,
    wait_for_others: bool = False,
    timeout: float | None = None,
) -> Answer:
    """Ask the server that the environment names, or that of this machine, with a client of its own.

    Arguments and errors are those of `Client.ask`.
    """
    with Client() as client:
        return client.ask(
            text,
            working_directory=working_directory,
            model=model,
            mode=mode,
            approval_policy=approval_policy,
            images=images,
            on_approval=on_approval,
            wait_for_others=wait_for_others,
            timeout=timeout,
        )
