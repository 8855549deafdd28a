"""The scenarios, their table and their gallery are made by the same rules."""

import json
import re

import pytest
import test_scenarios
from test_scenarios import FOLDER, SCENARIOS

GALLERY = FOLDER.parent / "docs" / "gallery"


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_is_tested_short_and_in_the_table(name):
    tested = {test.removeprefix("test_") for test in dir(test_scenarios) if test.startswith("test_")}
    text = (FOLDER / f"{name}.py").read_text()
    assert any(name.endswith(test) for test in tested)
    assert len(text.splitlines()) < 70
    assert all(word in text for word in ("**Source:**", "**What it shows:**", "**What would falsify it:**"))
    assert f"`{name}.py`" in (FOLDER / "README.md").read_text()
    imported = re.findall(r"^from flowsim(\S*) import (.*)$", text, re.MULTILINE)
    assert not any(
        part.startswith("_") for module, names in imported for part in [module.strip("."), *names.split(", ")]
    )


def test_every_scenario_is_in_one_section_of_the_gallery():
    page = (GALLERY.parent / "gallery.md").read_text()
    prefixes = " ".join(re.findall(r"^```{scenarios} (.*)$", page, re.MULTILINE)).split()
    assert {name: sum(name.startswith(prefix) for prefix in prefixes) for name in SCENARIOS} == dict.fromkeys(
        SCENARIOS, 1
    )


def test_the_pictures_of_the_gallery_are_of_scenarios_that_were_timed():
    pictures = {path.stem for path in GALLERY.glob("*.png")}
    assert pictures == set(json.loads((GALLERY / "seconds.json").read_text()))
    assert pictures <= set(SCENARIOS)
