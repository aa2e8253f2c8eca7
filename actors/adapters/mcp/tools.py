"""Converts the tools of MCP servers, and their results, to the form that models see.

Names that model providers do not accept are encoded. Tools that providers do not accept for other reasons are left out,
because every request that offered them would fail, in all conversations.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from actors.adapters.mcp.bounded_messages import UNREAD
from actors.adapters.mcp.server_settings import McpServer
from actors.common.json_schema import is_schema, parse_json
from actors.common.terminal_text import without_escapes
from actors.core.content import Image
from actors.core.context import ToolGroup, ToolTraits
from actors.core.steps.texts import escape
from actors.ports import ImagesUnavailableError, InvalidImageError, ToolOutput
from actors.ports.models import ToolSpec
from actors.ports.tools import McpToolLeftOut

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import BlobResourceContents, CallToolResult, TextResourceContents, Tool


log = logging.getLogger(__name__)

PREFIX = "mcp__"

MAX_TOOLS = 128

MAX_PAGES = 100

DESCRIPTION_CHARACTERS = 4_096

SCHEMA_BYTES = 64 << 10

# Maximum total size in bytes of the schemas and descriptions of one server's tools, which must not fill a context
# window.
LIST_BYTES = 512 << 10

MAX_LEFT_OUT = 128

# Maximum characters that providers accept in the names of tools and parameters.
NAME_CHARACTERS = 64

_CODE = r"x(?:[0-9a-f]{2,5}|10[0-9a-f]{4})"
_ENCODED = re.compile(f"_({_CODE})_")
_TO_ENCODE = re.compile(rf"[^A-Za-z0-9_-]|_(?={_CODE}(?:_|[^A-Za-z0-9_-]))")
# This pattern and _TO_ENCODE match the characters to encode in a name: those that providers do not accept, and each "_"
# that would otherwise be read as the beginning of an encoded character.
_PARAMETER_TO_ENCODE = re.compile(rf"[^A-Za-z0-9_.-]|_(?={_CODE}(?:_|[^A-Za-z0-9_.-]))")
# If a schema has other keywords than these, its parameters are not renamed, because such a keyword may refer to
# parameters by name.
_MAPPABLE = frozenset({
    "$comment", "$defs", "additionalProperties", "definitions", "description", "properties", "required", "title",
    "type",
})  # fmt: skip


class _NotOfferedError(Exception):
    """A tool cannot be offered; the message says why."""


def full_name(server: str, tool: str) -> str:
    return f"{PREFIX}{server}__{encoded(tool, _TO_ENCODE)}"


def parted(name: str) -> tuple[str, str] | None:
    """The server and the tool that a full name contains (server names have no underscore); None for other tools."""
    if not name.startswith(PREFIX):
        return None
    server, _, tool = name.removeprefix(PREFIX).partition("__")
    return (server, decoded(tool)) if server and tool else None


def encoded(name: str, what: re.Pattern[str] = _PARAMETER_TO_ENCODE) -> str:
    """Encode each character in `name` that `what` matches."""
    return what.sub(lambda found: f"_x{ord(found[0]):02x}_", name)


def decoded(name: str) -> str:
    """The original of an encoded name. No two names have the same encoded name."""
    return _ENCODED.sub(lambda found: chr(int(found[1][1:], 16)), name)


def own_arguments(arguments: dict[str, Any], name: str, tools: tuple[ToolSpec, ...]) -> dict[str, Any]:
    """The arguments of a call to the tool `name`, under the names that the server itself uses for its parameters."""
    properties: Any = next((tool.input_schema.get("properties", {}) for tool in tools if tool.name == name), {})
    return {decoded(each) if each in properties else each: value for each, value in arguments.items()}


async def tools_of(client: Client, server: McpServer) -> tuple[tuple[ToolSpec, ...], tuple[McpToolLeftOut, ...]]:
    """A server's tools that can be offered, in the server's order, and the tools that cannot be offered.

    Descriptions may be wrong or hostile; their length is limited. Raises the MCP library's errors.
    """
    found: dict[str, ToolSpec] = {}
    left_out: list[McpToolLeftOut] = []
    left = LIST_BYTES
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        for tool in page.tools:
            try:
                spec, size = _spec(server, tool)
                if spec.name in found:
                    raise _NotOfferedError("the server has another tool with this name")
                if len(found) == MAX_TOOLS or size > left:
                    raise _NotOfferedError("the server has too many tools, or they are too large in total")
            except _NotOfferedError as why:
                if len(left_out) < MAX_LEFT_OUT:
                    left_out.append(McpToolLeftOut(_cleaned(tool.name)[:NAME_CHARACTERS], str(why)))
                    log.warning("not offering tool %.100r of MCP server %s: %s", tool.name, server.name, why)
            else:
                found[spec.name] = spec
                left -= size
            await asyncio.sleep(0)  # lets other tasks run
        cursor = page.next_cursor
        if not cursor or len(found) == MAX_TOOLS:
            break
    if cursor:
        left_out.append(
            McpToolLeftOut("further tools", f"at most {MAX_TOOLS} tools from {MAX_PAGES} pages are offered")
        )
    return tuple(found.values()), tuple(left_out)


def _spec(server: McpServer, tool: Tool) -> tuple[ToolSpec, int]:
    read = {"name": tool.name, "title": tool.title, "description": tool.description, "inputSchema": tool.input_schema}
    given = (tool.meta or {}).get(UNREAD, read)
    own = given.get("name") if isinstance(given, dict) else None
    if not isinstance(own, str) or not own:
        raise _NotOfferedError("it has no name")
    name = full_name(server.name, own)
    if len(name) > NAME_CHARACTERS:
        raise _NotOfferedError(f"its full name would have more than {NAME_CHARACTERS} characters")
    texts = (given.get("description"), given.get("title"), own)
    description = _cleaned(next(text for text in texts if text and isinstance(text, str)))[:DESCRIPTION_CHARACTERS]
    schema, size = _schema(given.get("inputSchema"))
    traits = ToolTraits(name, ToolGroup.OTHER, writes=not server.changes_nothing(own))
    return ToolSpec(description, schema, traits, essential=True), size + len(description.encode())


def _schema(given: Any) -> tuple[dict[str, Any], int]:
    if not isinstance(given, dict):
        raise _NotOfferedError("it has no input schema" if given is None else "its input schema is not an object")
    try:
        text = json.dumps(given)
        if len(text) > SCHEMA_BYTES:
            raise _NotOfferedError(f"its input schema is larger than {SCHEMA_BYTES} bytes")
        schema = lifted(parse_json(text))
    except (ValueError, RecursionError) as error:
        raise _NotOfferedError(f"its input schema cannot be sent: {error}") from None
    schema = {"type": "object", **schema}
    if schema["type"] != "object":
        raise _NotOfferedError("its input schema does not describe an object")
    if not is_schema(schema):
        raise _NotOfferedError("its input schema is not a valid JSON Schema")
    if wrong := next((each for each in _references(schema) if not _resolves(schema, each)), ""):
        raise _NotOfferedError(f"its input schema refers to {wrong[:NAME_CHARACTERS]!r}, which it does not contain")
    return _cleaned(_renamed(schema)), len(text)


def _renamed(schema: dict[str, Any]) -> dict[str, Any]:
    names = {own: encoded(own) for own in schema.get("properties", ())}
    if any(not 0 < len(name) <= NAME_CHARACTERS for name in names.values()):
        raise _NotOfferedError("a parameter name is empty, or too long for providers")
    if all(name == own for own, name in names.items()):
        return schema
    if schema.keys() - _MAPPABLE or any(each == "#" or "/properties" in each for each in _references(schema)):
        raise _NotOfferedError("a parameter name has characters that providers do not accept, and cannot be changed")
    properties = {names[own]: inner for own, inner in schema["properties"].items()}
    required = {"required": [*map(encoded, schema["required"])]} if "required" in schema else {}
    return {**schema, "properties": properties, **required}


def _references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (value[key] for key in ("$ref", "$dynamicRef") if isinstance(value.get(key), str))
        value = list(value.values())
    for inner in value if isinstance(value, list) else ():
        yield from _references(inner)


def _resolves(schema: dict[str, Any], reference: str) -> bool:
    """Whether a reference leads to a part of the schema itself. Any reference to an anchor counts as one that does."""
    place: Any = schema
    for step in unquote(reference).split("/")[1:] if reference.startswith("#/") else ():
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list):
            place = place[int(key)] if key.isdecimal() and int(key) < len(place) else None
        else:
            place = place.get(key) if isinstance(place, dict) else None
    return reference.startswith("#") and place is not None


def _cleaned(value: Any) -> Any:
    """A JSON value made safe to show to a model: NUL is replaced, text that looks like a system notice is escaped."""
    if isinstance(value, str):
        return escape(value.replace("\0", "\ufffd"))
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(inner) for key, inner in value.items()}
    return [_cleaned(inner) for inner in value] if isinstance(value, list) else value


# Maximum characters of a result; of a longer one, only the beginning and the end are kept. Structured content up to
# this size is kept for clients.
TEXT_CHARACTERS = 128 * 1024

MAX_IMAGES = 8


def output_of(result: CallToolResult, keep_image: Callable[[bytes], Image], note: str = "") -> ToolOutput:
    """A result with its texts joined and its images stored; images that cannot be stored are mentioned.

    The text begins with `note`. Blocks, so call it on the tool's thread.
    """
    from mcp_types import AudioContent, EmbeddedResource, ImageContent, ResourceLink, TextContent  # noqa: PLC0415 -- any open connection has loaded this

    texts = [note] if note else []
    images: list[Image] = []
    seen = 0
    for part in result.content:
        match part:
            case TextContent(text=text):
                texts.append(without_escapes(text))
            case ImageContent(data=data):
                seen += 1
                kept = _image(data, keep_image) if seen <= MAX_IMAGES else ""
                if isinstance(kept, str):
                    texts += [kept] if kept else []
                else:
                    images.append(kept)
            case AudioContent(mime_type=kind):
                texts.append(f"(Audio of type {kind} was omitted.)")
            case ResourceLink(uri=uri, name=name):
                texts.append(f"(Resource {name}: {uri})")
            case EmbeddedResource():
                texts.append(_resource(part.resource))
    if seen > MAX_IMAGES:
        texts.append(f"({seen - MAX_IMAGES:,} of {seen:,} images were omitted: the limit is {MAX_IMAGES}.)")
    display = ""
    if result.structured_content is not None:
        if not any(isinstance(part, TextContent) for part in result.content):
            texts.append(json.dumps(result.structured_content, ensure_ascii=False))
        display = _well_formed(json.dumps({"structured_content": result.structured_content}, ensure_ascii=False))
    text = _cut(_well_formed("\n".join(texts))) or ("" if images else "(no content)")
    display = display if len(display) <= TEXT_CHARACTERS else ""
    return ToolOutput(text, is_error=result.is_error, images=tuple(images), display=display)


def _resource(resource: TextResourceContents | BlobResourceContents) -> str:
    text: str | None = getattr(resource, "text", None)
    if text is not None:
        return f"{resource.uri}:\n{without_escapes(text)}"
    return f"(The resource {resource.uri} of type {resource.mime_type} was omitted: it is not text.)"


def _image(data: str, keep_image: Callable[[bytes], Image]) -> Image | str:
    try:
        return keep_image(base64.b64decode(data, validate=True))
    except (binascii.Error, ValueError):
        return "(An image was omitted: it is not valid base64.)"
    except InvalidImageError as invalid:
        return f"(An image was omitted: it {invalid}.)"
    except ImagesUnavailableError as unavailable:
        return f"(An image was omitted: {unavailable}.)"


def _cut(text: str) -> str:
    over = len(text) - TEXT_CHARACTERS
    if over <= 0:
        return text
    half = TEXT_CHARACTERS // 2
    return f"{text[:half]}\n[… {over:,} characters omitted …]\n{text[-half:]}"


def _well_formed(text: str) -> str:
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


_SCHEMAS = frozenset({
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_LISTS = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_MAPS = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
# Keywords for which null is a meaningful value.
_VALUES = frozenset({"const", "default"})
# Matches "/items/" before a number in a reference. In older drafts, `items` can contain the schemas of a tuple.
_ITEM = re.compile(r"/items/(?=[0-9]+(/|$))")


def lifted(schema: Any) -> Any:
    """Convert a schema from an older draft to draft 2020-12; it must not be nested too deeply (see `is_too_deep`).

    A keyword with the value null counts as absent, because some libraries write empty values in this way. Anything that
    is not a schema is returned unchanged.
    """
    if not isinstance(schema, dict):
        return schema
    found = {key: _inner(key, value) for key, value in schema.items() if value is not None or key in _VALUES}
    found.pop("$schema", None)
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(found.get(exclusive), bool) and found.pop(exclusive) and limit in found:
            found[exclusive] = found.pop(limit)
    others = found.pop("additionalItems", None)
    if isinstance(found.get("items"), list):
        places = found.pop("items")
        found |= {"prefixItems": places} if places else {}
        found |= {} if others is None else {"items": others}
    if isinstance(dependencies := found.pop("dependencies", None), dict):
        needed = {name: each for name, each in dependencies.items() if isinstance(each, list)}
        other = {name: each for name, each in dependencies.items() if name not in needed}
        found |= {"dependentRequired": needed} if needed else {}
        found |= {"dependentSchemas": other} if other else {}
    if found.pop("$recursiveRef", None) == "#":
        found["$ref"] = "#"
    if isinstance(reference := found.get("$ref"), str):
        found["$ref"] = _ITEM.sub("/prefixItems/", reference)
    return found


def _inner(keyword: str, value: Any) -> Any:
    if keyword in _MAPS and value == []:  # PHP writes an empty object as a list
        return {}
    if keyword in _MAPS and isinstance(value, dict):
        return {name: lifted(each) for name, each in value.items()}
    if keyword in _LISTS and isinstance(value, list):
        return [lifted(each) for each in value]
    return lifted(value) if keyword in _SCHEMAS else value
