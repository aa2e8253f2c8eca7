"""What of an MCP tool's result the model gets."""

import pytest


def test_text_is_shown_as_a_terminal_leaves_it_if_it_has_escapes_and_unchanged_otherwise() -> None:
    from mcp_types import CallToolResult, EmbeddedResource, TextContent, TextResourceContents

    from actors.adapters.mcp.tools import output_of

    texts = ("\x1b[32mpassed\x1b[m\r\n\r10%\r\x1b[K100%", "crlf\r\n10%\r20%")
    result = CallToolResult(content=[TextContent(type="text", text=text) for text in texts])
    assert output_of(result, lambda data: pytest.fail("no image")).text == f"passed\n100%\n{texts[1]}"
    resource = EmbeddedResource(resource=TextResourceContents(uri="log:1", text="\x1b[32mpassed\x1b[m"))
    result = CallToolResult(content=[resource])
    assert output_of(result, lambda data: pytest.fail("no image")).text == "log:1:\npassed"
