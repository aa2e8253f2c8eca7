"""Prices and windows in models.toml are those of genai-prices on the day that it names; the rest is written by hand."""

import re
import tomllib
from datetime import date
from importlib.metadata import version

from tests.generate.model_prices import CATALOG, ROW, STATED, refreshed

TEXT = CATALOG.read_text(encoding="utf-8")


def test_the_file_is_what_make_model_prices_writes() -> None:
    stated = STATED.search(TEXT)
    assert stated is not None
    assert stated["version"] == version("genai-prices"), "if this is meant: make model-prices"
    assert refreshed(TEXT, date.fromisoformat(stated["day"])) == TEXT, "if this is meant: make model-prices"


def test_what_is_written_by_hand_survives() -> None:
    spoilt = re.sub(r"price = \{.*\} \}", "price = { input = 1 } }", TEXT)
    spoilt = re.sub(r"window = [\d_]+(?=.*price)", "window = 1", spoilt)
    day = date.fromisoformat(STATED.findall(TEXT)[0][1])
    rows = [row for row in map(ROW.fullmatch, refreshed(spoilt, day).split("\n")) if row and row["window"] != "1"]
    known = {row["name"] for row in rows}
    assert {"claude-sonnet-5-5", "gpt-6.1-sol", "gpt-5.4"} <= known
    before, after = (tomllib.loads(text)["models"] for text in (TEXT, refreshed(spoilt, day)))
    assert {name: after[name] for name in known} == {name: before[name] for name in known}
    assert after["gpt-5.4"]["input"] == 922_000


def test_the_price_is_that_of_the_day() -> None:
    before, after = (tomllib.loads(refreshed(TEXT, date(2026, month, 1)))["models"]["gpt-5.6"] for month in (8, 9))
    assert (before["price"]["input"], after["price"]["input"]) == (5, 4)
    assert before["price"]["long"] == after["price"]["long"] == {"from": 272_000, "input": 2, "output": 1.5}
