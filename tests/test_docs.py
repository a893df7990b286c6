"""README and docs: finished, and what they point to exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_nothing_was_left_to_fill_in_and_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    assert "@@" not in text and "TODO" not in text
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (page.parent / target).exists(), target


def test_readme_shows_the_two_commands_and_every_folder() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text and "make test" in text
    for package in ROOT.glob("*/__init__.py"):
        if package.parent.name != "tests":
            assert f"`{package.parent.name}/`" in text, package.parent.name
