"""Lone surrogates in what a provider sends: replaced, whatever the protocol, and never a failed attempt."""

import json

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from actors.adapters.llm.protocols.lenient_json import replace_lone_surrogates


@given(st.text(st.characters(codec=None, categories=None)))
@example("\ud800\ud800\udc00\udc00")
@example("\\ud800")
@example("\\\\\ud83d")
def test_text_decodes_with_a_replacement_for_each_lone_surrogate(text: str) -> None:
    written = json.dumps({"text": text})
    wanted = json.loads(written)["text"].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert msgspec.json.decode(replace_lone_surrogates(written))["text"] == wanted
    assert replace_lone_surrogates(replace_lone_surrogates(written)) == replace_lone_surrogates(written)
