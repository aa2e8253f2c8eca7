"""Checks which generation settings (reasoning effort, temperature, answer length) a model supports.

Safe to call from any thread; no provider is contacted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.core.errors import Reason, Rejected
from actors.core.profile import Generation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.ports import ModelInfo


def check_generation(wanted: Generation, model: ModelInfo) -> None:
    """Check that the model supports all settings that are set.

    Raises Rejected (GENERATION_UNSUPPORTED), whose text names every setting that is not supported.
    """
    if problems := "; ".join(_problems(wanted, model)):
        raise Rejected(Reason.GENERATION_UNSUPPORTED, problems)


def supported(wanted: Generation, model: ModelInfo) -> Generation:
    """Return `wanted` without settings that the model does not support, and with a supported answer length.

    The settings were supported when they were chosen, but the provider may since have reported that the model has
    other abilities.
    """
    return Generation(
        wanted.reasoning_effort if wanted.reasoning_effort in model.reasoning_efforts else None,
        wanted.temperature if model.temperature else None,
        min(wanted.max_output_tokens, model.answer_limit),
    )


def _problems(wanted: Generation, model: ModelInfo) -> Iterator[str]:
    if wanted.reasoning_effort is not None and wanted.reasoning_effort not in model.reasoning_efforts:
        there_are = ", ".join(model.reasoning_efforts)
        yield f"generation.reasoning_effort: {model.name} offers {there_are or 'no choice'}"
    if wanted.temperature is not None and not model.temperature:
        yield f"generation.temperature: {model.name} takes none"
    if wanted.max_output_tokens > model.answer_limit:
        most = f"{model.answer_limit} tokens at most" if model.answer_limit else "no limit"
        yield f"generation.max_output_tokens: {model.name} takes {most}"
