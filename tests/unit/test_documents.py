"""What is written for people is true: links lead somewhere, named tests exist, tables are what the code says."""

import re
import tomllib
from pathlib import Path

import pytest
from bedrock._interrupts import INTERRUPTED
from msgspec.structs import fields as struct_fields

from actors.adapters.llm.catalog import Catalog
from actors.adapters.llm.provider import SETTINGS as PROVIDER_SETTINGS
from actors.adapters.llm.provider import (
    ProviderConfig,
    StatedLimits,
    presets,
    provider_from_mapping,
    providers_from_env,
)
from actors.adapters.tools.registry import StandardToolbox
from server import cli
from server.settings.config import SETTINGS, Config, load
from tests.bench.__main__ import PARTS
from tests.documents.pages import PAGES, README, ROOT, anchors, fenced, links, named_tests, section, table

PAGE = README.read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
REQUIREMENTS = (ROOT / "docs" / "requirements.md").read_text(encoding="utf-8")
README_LINES = 130
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


# --- every page -------------------------------------------------------------------------------------------------------


@EVERY_PAGE
def test_links_lead_to_what_is_there(page: Path) -> None:
    local = [link for link in links(page) if link.local]
    assert not [link.target for link in local if not link.file.exists()]


@EVERY_PAGE
def test_links_to_a_heading_lead_to_one(page: Path) -> None:
    fragments = [link for link in links(page) if "#" in link.target and "://" not in link.target]
    assert not [link.target for link in fragments if link.fragment not in anchors(link.file)]


@EVERY_PAGE
def test_tests_that_are_named_exist(page: Path) -> None:
    named = [link for link in links(page) if link.text.startswith("test_")]
    assert not [link.text for link in named if link.text not in named_tests(link.file)]


# --- README -----------------------------------------------------------------------------------------------------------


def test_every_requirement_has_its_proof() -> None:
    rows = table(REQUIREMENTS)
    assert [number for number, *_ in rows] == [f"{number:03}" for number in range(1, 27)]
    for number, _, proof in rows:
        assert re.search(r"\[test_\w+\]\(\.\./tests/", proof), f"{number}: {proof}"


def test_the_promises_are_in_the_words_that_were_agreed() -> None:
    agreed = "A tool that can change something never starts twice; messages are stored exactly once given a request id."
    assert agreed in section(PAGE, "## What it promises")


def test_the_tools_are_named() -> None:
    said = re.search(r"The tools are (.*?);", REQUIREMENTS, re.DOTALL)
    assert said
    assert re.findall(r"`(\w+)`", said[1]) == [spec.name for spec in StandardToolbox().specs(sub_agent=False)]


def test_the_models_by_default_are_those_of_the_environment() -> None:
    rows = table(section(PAGE, "## Plug in a model"))
    assert len(rows) == 3
    for setting, model in rows:
        variable, _, value = setting.strip("`").partition("=")
        (provider,) = providers_from_env({variable: value or "key"})
        assert model.startswith(f"`{provider.default_model}`" if not value else "its only model")
        (chosen,) = re.findall(r"or `(\w+)`", model)
        (provider,) = providers_from_env({variable: value or "key", chosen: "mine"})
        assert provider.default_model == "mine"


def test_readme_is_short_enough_to_be_read() -> None:
    assert len(PAGE.splitlines()) <= README_LINES


def test_every_measurement_is_named_where_measuring_is_explained() -> None:
    text = (ROOT / "tests" / "README.md").read_text(encoding="utf-8")
    assert ", ".join(PARTS) in " ".join(text.split())


# --- operations -------------------------------------------------------------------------------------------------------


def test_the_table_of_settings_is_that_of_the_code() -> None:
    rows = table(section(OPERATIONS, "## Settings"))
    assert [name.strip("`") for name, *_ in rows] == list(SETTINGS)
    flags = {option for parameter in cli.serve.params for option in parameter.opts}
    defaults = {each.name: each.default for each in struct_fields(Config)}
    for name, flag, variable, default, _ in rows:
        setting = name.strip("`")
        assert flag.strip("`") in flags
        assert variable == f"`BEDROCK_{setting.upper()}`"
        built_in = defaults[setting]
        if isinstance(built_in, tuple):
            built_in = ",".join(built_in)
        if built_in not in ("", None) and setting != "data_dir":
            assert default == f"`{built_in}`"
        else:
            assert not default.startswith("`") or setting == "data_dir"


def test_the_usual_data_directory_is_the_one_that_is_named() -> None:
    assert load({}, {"HOME": "/h"}).data_dir == Path("/h/.local/state/bedrock")
    assert load({}, {"HOME": "/h", "XDG_STATE_HOME": "/s"}).data_dir == Path("/s/bedrock")


def test_the_table_of_a_providers_settings_is_that_of_the_code() -> None:
    rows = table(section(OPERATIONS, "## Model providers"))
    known = {each.name: each for each in struct_fields(ProviderConfig) if each.name in PROVIDER_SETTINGS}
    assert [name.strip("`") for name, *_ in rows] == list(known)
    for name, default, _ in rows:
        built_in = known[name.strip("`")].default
        if isinstance(built_in, str | bool) and built_in != "":
            assert default == f"`{built_in}`"


def test_the_presets_and_what_can_be_said_about_a_model_are_named() -> None:
    providers = section(OPERATIONS, "## Model providers")
    named = re.search(r"presets\.toml\): (.*?)\.\s", providers, re.DOTALL)
    assert named
    assert re.findall(r"`([\w.]+)`", named[1]) == list(presets())
    rows = table(section(OPERATIONS, "## Limits and prices of models"))
    assert [name.strip("`") for name, *_ in rows] == [field.name for field in struct_fields(StatedLimits)]


def test_the_example_of_providers_can_be_used(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(fenced(OPERATIONS, "providers"), encoding="utf-8")
    config = load({}, {"HOME": "/h"}, file)
    providers = [provider_from_mapping(name, settings) for name, settings in config.providers.items()]
    catalog = Catalog(providers, default=config.default_model, models=config.models)
    assert catalog.default == "qwen3"
    served = catalog.get("qwen3")
    assert served is not None
    assert served.info.context_window == 32_768


def test_the_exit_codes_of_the_server_are_named() -> None:
    rows = table(section(OPERATIONS, "## Start and stop"))
    assert [int(code) for code, _ in rows] == [0, cli.CANNOT_START, cli.USAGE, INTERRUPTED]


# --- decisions --------------------------------------------------------------------------------------------------------


def test_every_dependency_has_its_reason() -> None:
    decisions = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.match(r"[\w-]+", wanted)[0] for wanted in project["dependencies"]]  # type: ignore[index]
    rows = table(section(decisions, "## Dependencies and why"))
    assert [name.strip("`") for name, _ in rows] == names
    assert all(why for _, why in rows)


def test_messages_that_operators_look_up_are_those_of_the_code() -> None:
    found = [row[0].strip("`") for row in table(section(OPERATIONS, "## When it goes wrong"))]
    code = "".join(
        re.sub(r'"\s*\n\s*f?"', "", file.read_text(encoding="utf-8"))
        for folder in ("actors", "server", "clients/bedrock")
        for file in (ROOT / folder).rglob("*.py")
    )
    assert len(found) > 10
    assert not [
        message for message in found if message.replace("process", "{holder}") not in code and message not in code
    ]


def test_every_promise_of_the_threat_model_names_its_test() -> None:
    page = ROOT / "docs" / "threat-model.md"
    rows = table(section(page.read_text(encoding="utf-8"), "## Boundaries, and what holds them"))
    assert len(rows) > 10
    assert not [row for row in rows if "](../tests/" not in row[-1] or not row[-1].startswith("[test_")]
