"""Check what the creator of a conversation chooses for it. Actor's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from actors.messages.refusals import InvalidFieldError

if TYPE_CHECKING:
    from actors.core.profile import Profile
    from actors.runtime.services import Services


def checked(services: Services, wanted: Profile) -> Profile:
    """Return the profile of a new conversation, its tools in the order for the model. Raises InvalidFieldError."""
    if wanted.tools is None:
        return wanted
    known = [spec.name for spec in services.toolbox.specs(sub_agent=False)]
    if unknown := [name for name in wanted.tools if name not in known]:
        raise InvalidFieldError("tools", f"there is no tool {unknown[0]!r}; there are: {', '.join(known)}")
    return replace(wanted, tools=tuple(name for name in known if name in wanted.tools))
