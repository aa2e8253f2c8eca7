"""What checks of settings of the server and of adapters have in common."""

from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct, field

from actors.ports.settings_checks import is_loopback, read


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_this_machine_is_known_by_its_addresses_and_its_name(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.0.0.1", "::", "localhost.example.org", "127.0.0.1.example.org"])
def test_no_other_host_is_this_machine(host: str) -> None:
    assert not is_loopback(host)


class Part(Struct, forbid_unknown_fields=True):
    where: Annotated[str, Meta(description="must be host:port")] = field(name="address")
    share: Annotated[float, Meta(ge=0)] = 1.0
    kind: Literal["a", "b"] = "a"

    def __post_init__(self) -> None:
        if self.share == 7:
            raise ValueError(".share: is not for sale")


class Whole(Struct, forbid_unknown_fields=True):
    parts: list[Part] = []
    best: Part | None = None


@pytest.mark.parametrize(
    ("given", "refusal"),
    [
        ({"parts": 1}, "whole.parts: must be a list"),
        ({"parts": [{"address": "x"}, {"address": 1}]}, "whole.parts[2].address: must be host:port"),
        ({"best": {}}, "whole.best.address: needed; must be host:port"),
        ({"best": {"address": "x", "share": -1}}, "whole.best.share: must be a number >= 0.0"),
        ({"best": {"address": "x", "share": 7}}, "whole.best.share: is not for sale"),
        ({"best": {"address": "x", "kind": "c"}}, "whole.best.kind: must be one of a, b"),
        (
            {"best": {"addresses": "x"}},
            "whole.best.addresses: unknown; did you mean 'address'? There are: address, share",
        ),
        ({"worst": 1}, "whole.worst: unknown; there are: parts, best"),
    ],
)
def test_what_a_struct_does_not_take_is_refused_by_its_path(given: object, refusal: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011 -- the beginning is compared
        read(Whole, "whole", given)
    assert str(refused.value).startswith(refusal)
