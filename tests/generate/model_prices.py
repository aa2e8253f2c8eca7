"""Write prices and windows of genai-prices into models.toml: `python -m tests.generate.model_prices`.

A row with a price gets the list prices of the day and the window of its model; all else in it stays, as does a row
whose model that package does not know. It lacks input limits, and says nothing about what a model can be asked for.
"""

import re
import sys
from datetime import UTC, date, datetime, time
from decimal import Decimal
from difflib import unified_diff
from importlib.metadata import version
from pathlib import Path

from genai_prices.data import providers
from genai_prices.types import ModelInfo, ModelPrice, TieredPrices

CATALOG = Path(__file__).parents[2] / "actors/adapters/llm/models.toml"
MAKERS = {"# Anthropic": "anthropic", "# OpenAI": "openai"}
"""The provider whose prices count, by the comment above its rows."""
STATED = re.compile(r"# Prices and windows are those of genai-prices (?P<version>\S+) on (?P<day>\S+)\.")
ROW = re.compile(r'"(?P<name>[^"]+)" = \{ window = (?P<window>[\d_]+),(?P<rest>.*?)price = \{ .* \} \}')
PARTS = {
    "input": "input_mtok",
    "output": "output_mtok",
    "cache_read": "cache_read_mtok",
    "cache_write": "cache_write_mtok",
}


def refreshed(text: str, day: date) -> str:
    """Return the text of models.toml with the prices and windows of a day."""
    stated = f"# Prices and windows are those of genai-prices {version('genai-prices')} on {day}."
    lines, maker = [], ""
    for line in STATED.sub(stated, text).split("\n"):
        maker = next((found for head, found in MAKERS.items() if line.startswith(head)), maker)
        lines.append(_row(line, maker, day))
    return "\n".join(lines)


def _row(line: str, maker: str, day: date) -> str:
    row = ROW.fullmatch(line)
    model = _model(maker, row["name"]) if row else None
    if not row or not model or not model.context_window:
        return line
    price = _price(model.get_prices(datetime.combine(day, time(12), UTC)))
    return f'"{row["name"]}" = {{ window = {model.context_window:_},{row["rest"]}{price} }}'


def _model(maker: str, name: str) -> ModelInfo | None:
    return next((each.find_model(name) for each in providers if each.id == maker), None)


def _price(prices: ModelPrice) -> str:
    parts, factors, start = [], [], 0
    for name, field in PARTS.items():
        found = getattr(prices, field)
        if isinstance(found, TieredPrices):
            (tier,) = found.tiers
            start = tier.start
            if name in ("input", "output"):
                factors.append(f"{name} = {_number(tier.price / found.base)}")
            found = found.base
        if found is not None:
            parts.append(f"{name} = {_number(found)}")
    if factors:
        parts.append(f"long = {{ from = {start:_}, {', '.join(factors)} }}")
    return f"price = {{ {', '.join(parts)} }}"


def _number(value: Decimal) -> str:
    return f"{value.normalize():f}"


def main() -> int:
    before = CATALOG.read_text(encoding="utf-8")
    after = refreshed(before, date.today())
    CATALOG.write_text(after, encoding="utf-8")
    sys.stdout.writelines(unified_diff(before.splitlines(True), after.splitlines(True), "before", "after", n=0))
    return 0


if __name__ == "__main__":
    sys.exit(main())
