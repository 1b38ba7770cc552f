"""docs/build_site.py makes a site of all pages, and refuses links that lead nowhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.paths import DOCS, ROOT


def build(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "docs" / "build_site.py"), str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_every_page_is_in_the_site_and_is_found_by_its_words(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stderr
    for page in DOCS.rglob("*.md"):
        name = "index.html" if page.name == "README.md" else f"{page.stem}.html"
        assert (tmp_path / page.relative_to(ROOT).with_name(name)).stat().st_size > 1_000
    assert (tmp_path / "api" / "marshal_py.html").stat().st_size > 1_000
    index = json.loads((tmp_path / "search" / "search_index.json").read_text())
    found = {entry["location"] for entry in index["docs"] if "fencing token" in entry["text"]}
    assert any(location.startswith("docs/reference/glossary.html") for location in found)


def test_a_link_that_leads_nowhere_is_an_error(tmp_path: Path) -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "specs").rglob("*.md"), *DOCS.rglob("*.*")]:
        if page.suffix in (".md", ".py", ".yml"):
            copy = tmp_path / "copy" / page.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(page, copy)
    with (tmp_path / "copy" / "docs" / "reference" / "glossary.md").open("a") as glossary:
        glossary.write("\n[nowhere](nowhere.md)\n")
    done = build(tmp_path / "copy", tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr
