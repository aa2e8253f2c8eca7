"""What checks of settings of the server and of adapters have in common."""

import pytest

from actors.ports.settings.settings_checks import check_keys, is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_this_machine_is_known_by_its_addresses_and_its_name(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "0.0.0.0", "10.0.0.1", "::", "localhost.example.org", "127.0.0.1.example.org"])
def test_no_other_host_is_this_machine(host: str) -> None:
    assert not is_loopback(host)


def test_keys_that_nothing_reads_are_named_with_those_that_there_are() -> None:
    check_keys("quotas", {"streams": 1}, ("streams", "runs"))
    with pytest.raises(ValueError, match=r"^quotas\.a: unknown; there are: streams, runs$"):
        check_keys("quotas", {"streams": 1, "b": 2, "a": 3}, ("streams", "runs"))
