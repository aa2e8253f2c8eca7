"""Incremental parser of one HTTP response, based on llhttp: it returns the head and the content, and finds the end."""

from __future__ import annotations

#: Maximum bytes that may arrive in succession without any content: the response's head, chunk headers, other framing.
MAX_OVERHEAD_BYTES = 256 << 10

#: Deviations from the standard that are accepted, as other HTTP clients do: folded headers, LF alone as line end, a
#: Content-Length in addition to chunks, a chunk's length padded with spaces. They are dangerous only for proxies.
_LENIENCIES = {
    "lenient_headers": True,
    "lenient_optional_cr_before_lf": True,
    "lenient_chunked_length": True,
    "lenient_spaces_after_chunk_size": True,
}


class MalformedResponseError(Exception):
    """The received data is not HTTP, or ended too early."""


class ResponseParser:
    """Parses one response. Not thread-safe.

    Interim responses (1xx) are skipped, trailers ignored. Header names are in lower case. The values of a header that
    occurs more than once are joined by ", ".
    """

    def __init__(self) -> None:
        import httptools  # noqa: PLC0415 -- 0.3 MiB that only requests to providers need

        self.status = 0
        self.headers: dict[str, str] = {}
        self.head_complete = False
        self.complete = False
        self.keeps_alive = False
        """Whether the connection can be used for another request once the response is complete."""
        self.until_close = False
        """Whether the end of the connection is the end of the response."""
        self._content: list[bytes] = []
        self._overhead = 0
        self._malformed = False
        self.on_body = self._content.append  # llhttp calls this with each piece of content
        self._parser = httptools.HttpResponseParser(self)
        self._refusals = (httptools.HttpParserError, httptools.HttpParserUpgrade)
        self._parser.set_dangerous_leniencies(**_LENIENCIES)

    def feed(self, data: bytes) -> None:
        """Parse the next bytes. Raises MalformedResponseError if the head of the response is malformed.

        If the content is malformed, this method raises nothing, but `take` raises MalformedResponseError later.
        """
        if self.complete:
            self.keeps_alive = False  # data after a complete response does not belong to our request
            return
        try:
            self._parser.feed_data(data)
        except self._refusals:
            self.keeps_alive = False
            self._malformed = not self.complete
        if self.complete:
            del self._parser  # breaks the reference cycle with this object, so that both are freed at once
        self._overhead = 0 if self._content else self._overhead + len(data)
        self._malformed = self._malformed or self._overhead > MAX_OVERHEAD_BYTES
        if self._malformed and not self.head_complete:
            raise MalformedResponseError

    def take(self) -> bytes:
        """Remove and return the received content; b"" if there is none.

        Raises MalformedResponseError if malformed data was received, but only once the content received before that
        data was taken.
        """
        if self._malformed and not self._content:
            raise MalformedResponseError
        content = self._content[0] if len(self._content) == 1 else b"".join(self._content)
        self._content.clear()
        return content

    def end(self) -> None:
        """Process the end of the connection. Raises MalformedResponseError if the response is incomplete."""
        if not (self.complete or self.until_close):
            raise MalformedResponseError
        self.complete = True
        self.keeps_alive = False

    def on_message_begin(self) -> None:
        """Accept the beginning of a response: the first one, or one after an interim response. Called by llhttp.

        Raises MalformedResponseError if the response was complete before.
        """
        if self.complete:
            raise MalformedResponseError

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header. Called by llhttp."""
        if not self.head_complete:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self.headers[key] = f"{self.headers[key]}, {text}" if key in self.headers else text

    def on_headers_complete(self) -> None:
        """Process the end of the head. Called by llhttp."""
        self.status = self._parser.get_status_code()
        if self.status < 200:
            self.headers.clear()
            return
        self.head_complete = True
        self.keeps_alive = self._parser.should_keep_alive()
        framed = "content-length" in self.headers or "chunked" in self.headers.get("transfer-encoding", "").lower()
        self.until_close = not framed

    def on_message_complete(self) -> None:
        """Process the end of a response. Called by llhttp."""
        self.complete = self.head_complete
