"""docs/reliability.md is what its generator writes, and names only what exists."""

import re
from pathlib import Path

from tests.generate.reliability import ROOT, SUITES, TARGET, render, reported, stored

PAGE = TARGET.read_text(encoding="utf-8")


def test_the_page_is_what_its_generator_writes_with_its_figures() -> None:
    assert render(stored(PAGE)) == PAGE


def test_every_suite_that_it_names_exists() -> None:
    for suite in SUITES:
        for where in suite.where:
            found = ROOT / where
            assert found.is_file() or any(found.glob("test_*.py")), where
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target, part in re.findall(r"`make ([a-z-]+)(?: PARTS=(\w+))?`", PAGE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
        assert not part or f"fault-{part}:" in makefile, part


def test_every_part_of_the_fault_suites_has_a_row_and_records_what_it_did() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    parts = re.search(r"^FAULTS := (.*)$", makefile, re.MULTILINE)
    assert parts
    for part in parts[1].split():
        assert f"make fault PARTS={part}" in [suite.make for suite in SUITES if suite.key == part]
        recipe = re.search(rf"^fault-{part}:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        assert recipe is not None, part
        assert f"\t$(RECORD) {part}" in recipe[1], part


def test_a_long_run_has_figures_a_date_and_a_commit() -> None:
    for amount, wrong, date, commit in stored(PAGE).values():
        assert re.search(r"\d", amount)
        assert wrong == "0"
        assert re.fullmatch(r"20\d\d-\d\d-\d\d", date)
        assert re.fullmatch(r"[0-9a-f]{7,}", commit)
    assert "soak" in stored(PAGE)


def test_figures_of_reports_replace_those_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "fault.json").write_text(
        '{"kill": {"date": "2030-01-02", "commit": "abcdef1", "amounts": {"TREES": 1000, "KILLS": 500}}}'
    )
    page = render({**stored(PAGE), **reported(tmp_path)})
    assert stored(page)["kill"] == ("1,000 trees, 500 kills", "0", "2030-01-02", "abcdef1")
    assert stored(page)["soak"] == stored(PAGE)["soak"]
