"""The tags that distinguish Bedrock's own text in a prompt from the text of people, files and tools.

Only Bedrock writes these tags. In other text the same tags are escaped, always in the same way, so that a provider's
view of a message never changes; the rest of that text is left unchanged.
"""

from __future__ import annotations

import re
from functools import cache

NOTICE = "system-notice"
"""The tag that surrounds a system message, which is sent to the model as part of a user's turn."""
REPOSITORY_FILE = "repository-file"
"""Tag of a file of the repository in the system prompt."""
CALL, RESULT = "tool-call", "tool-result"
"""Tags of tool calls and tool results when they are rendered as text."""

# A fixed list instead of `unicodedata`, whose categories change with the Python version: text that a model has seen
# must stay the same.
_FORMAT = (
    r"\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f"
    r"\ufe00-\ufe0f\ufeff\ufff9-\ufffb\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3"
    r"\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
_IGNORED = rf"[\s\x00-\x1f\x7f-\x9f{_FORMAT}]*+"
"""Characters that a model may ignore inside a tag: white space, control and format characters."""


@cache
def _opening(*names: str) -> re.Pattern[str]:
    """Return a pattern that matches the `<` of tags with these names, opening or closing, with any spacing and case.

    The pattern is compiled at its first use, because compiling takes as long as importing a whole package.
    """
    spaced = "|".join(_IGNORED.join(map(re.escape, name)) for name in names)
    return re.compile(f"<(?={_IGNORED}/?{_IGNORED}(?:{spaced}))", re.IGNORECASE)


def escape(text: str) -> str:
    """Escape the tags of notices and repository files: their `<` becomes `&lt;`."""
    return _opening(NOTICE, REPOSITORY_FILE).sub("&lt;", text) if "<" in text else text


def escape_calls(text: str) -> str:
    """Escape the tags of tool calls and tool results as well as those that `escape` handles."""
    return _opening(NOTICE, REPOSITORY_FILE, CALL, RESULT).sub("&lt;", text)


def notice(text: str) -> str:
    """Wrap a system message's text in the notice tag."""
    return f"<{NOTICE}>\n{escape(text)}\n</{NOTICE}>"
