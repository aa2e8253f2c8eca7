"""The pytest plugin: the fixtures `bedrock`, `bedrock_server` and `start_bedrock`.

pytest loads this module wherever this package is installed. To keep that cheap, the module imports nothing else from
`bedrock.testing` before a test uses a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bedrock.testing.harness import Bedrock
    from bedrock.testing.private_server import PrivateServer

_PASSED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def bedrock_server() -> Iterator[PrivateServer]:
    """Start the server that all tests with the fixture `bedrock` share. A conftest.py may replace this fixture."""
    with ExitStack() as opened:
        yield _opened(opened)


@pytest.fixture
def bedrock(bedrock_server: PrivateServer, request: pytest.FixtureRequest) -> Iterator[Bedrock]:
    """Provide a server without conversations, with a client and a model that answers as the test scripts it."""
    from bedrock.testing.harness import Bedrock  # noqa: PLC0415 -- imported only if a test uses the fixture

    made = Bedrock(bedrock_server)
    yield made
    _finish(request, [made])


@pytest.fixture
def start_bedrock(request: pytest.FixtureRequest) -> Iterator[Callable[..., Bedrock]]:
    """Provide a function that starts further servers, each with a model.

    Its arguments are those of `PrivateServer`: ``start_bedrock("--config", path, BEDROCK_DEFAULT_MODEL="…")``.
    """
    from bedrock.testing.harness import Bedrock  # noqa: PLC0415

    made: list[Bedrock] = []
    with ExitStack() as opened:

        def start(*arguments: str, **environment: str) -> Bedrock:
            made.append(Bedrock(_opened(opened, *arguments, **environment)))
            return made[-1]

        yield start
        _finish(request, made)


def _opened(stack: ExitStack, *arguments: str, **environment: str) -> PrivateServer:
    from bedrock.cli.exit_codes import CommandError  # noqa: PLC0415
    from bedrock.testing.private_server import PrivateServer  # noqa: PLC0415

    try:
        return stack.enter_context(PrivateServer(*arguments, **environment))
    except CommandError as error:
        pytest.fail(str(error), pytrace=False)


def _finish(request: pytest.FixtureRequest, made: list[Bedrock]) -> None:
    problems = [problem for each in made for problem in each.close()]
    if problems and request.node.stash.get(_PASSED, False):
        pytest.fail("\n".join(problems), pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember whether the test passed. If it failed, add the server's log to its report."""
    report = yield
    if report.when == "call":
        item.stash[_PASSED] = report.passed
        server: PrivateServer | None = getattr(item, "funcargs", {}).get("bedrock_server")
        if report.failed and server is not None and (log := server.log()):
            report.sections.append(("Log of the Bedrock server", log))
    return report
