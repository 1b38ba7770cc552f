"""The documentation as a site with a search, and the API: `python docs/build_site.py FOLDER`.

The pages lie where readers of the repository look for them: some in its root and in `specs/`. They
are copied to one place, and what they link to that is no page (a module, say) is named there only.
"""

from __future__ import annotations

import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from api_reference import write_reference

__all__ = ["write_site"]

ROOT: Final = Path(__file__).resolve().parents[1]
LINK: Final = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")
CODE: Final = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def pages() -> list[Path]:
    """All pages, relative to the repository."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "specs").rglob("*.md")]
    return sorted(page.relative_to(ROOT) for page in found)


def write_site(folder: Path) -> None:
    """Write the site into `folder`. Raises `mkdocs.exceptions.Abort` where a link leads nowhere."""
    try:
        from mkdocs.commands.build import build
        from mkdocs.config import load_config
    except ImportError:
        sys.exit("this needs mkdocs-material: run `pip install mkdocs-material`")
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING)
    with tempfile.TemporaryDirectory(prefix="marshal-docs-") as temporary:
        tree = Path(temporary)
        for page in pages():
            copy = tree / page
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(_for_site(page), encoding="utf-8")
        (tree / "api").mkdir()
        write_reference(tree / "api")
        settings = str(ROOT / "docs" / "mkdocs.yml")
        build(load_config(settings, docs_dir=str(tree), site_dir=str(folder.resolve())))


def _for_site(page: Path) -> str:
    """The page's text; of links to what is no page, only the words are left."""

    def link(match: re.Match[str]) -> str:
        words, target = match[1], match[2]
        if re.match(r"[a-z]+:", target):
            return match[0]
        whole = (ROOT / page.parent / target).resolve()
        if whole.is_dir() and (whole / "README.md").exists():
            return f"[{words}]({target.rstrip('/')}/README.md{match[3] or ''})"
        return match[0] if whole.suffix == ".md" else words

    kept: list[str] = []  # code, which has no links, but may be the words of one

    def keep(match: re.Match[str]) -> str:
        kept.append(match[0])
        return f"\0{len(kept) - 1}\0"

    text = LINK.sub(link, CODE.sub(keep, (ROOT / page).read_text(encoding="utf-8")))
    return re.sub(r"\0(\d+)\0", lambda m: kept[int(m[1])], text)


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python docs/build_site.py FOLDER")
    write_site(Path(sys.argv[1]))
