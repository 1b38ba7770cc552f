"""Markdown: every link leads somewhere, every command is understood, every size is true."""

from __future__ import annotations

import re
import tracemalloc
from pathlib import Path

import pytest

from marshal_py.protocol.messages import ClaimingPartition, Heartbeat, encode
from marshal_py.protocol.rationalizer import PartitionState, apply
from tests.support.paths import DOCS, ROOT, SPECS
from tests.unit.marshal_py.cli.test_help import check_command_line

PAGES = sorted([*ROOT.glob("*.md"), *SPECS.rglob("*.md"), *DOCS.rglob("*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
OURS = re.compile(r"^(?:\$ )?((?:marshal|harvest) .*)$")


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]*`", "", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as code hosts make them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).strip().replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_links_are_not_dead(page: Path) -> None:
    for target in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue  # elsewhere: not looked up
        path, _, anchor = target.partition("#")
        file = page if not path else page.parent / path
        assert file.exists(), f"{page.name}: {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name}: {target}"


def commands(page: Path) -> tuple[list[str], list[str]]:
    """The lines of our commands in console blocks, and those in running text."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```(?:console|sh|bash)\n(.*?)```", text, re.DOTALL))
    lines = [m[1] for line in blocks.splitlines() if (m := OURS.match(line.strip()))]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    inline = re.findall(r"`((?:marshal|harvest) [^`\n]*)`", prose)
    return lines, [line for line in inline if "…" not in line and "|" not in line and " -" in line]


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_commands_are_understood(page: Path) -> None:
    lines, inline = commands(page)
    for line in lines:
        check_command_line(line)
    for line in inline:
        check_command_line(line, complete=False)


def test_there_are_commands_and_links_to_check() -> None:
    assert sum(len(part) for page in PAGES for part in commands(page)) > 40
    assert sum(len(LINK.findall(page.read_text())) for page in PAGES) > 20


def test_the_sizes_in_the_operators_guide() -> None:
    def heartbeat(claims: int) -> bytes:
        moved = [1_234_567, 4_711_000] * claims
        return encode(
            Heartbeat(2, "billing-1", "0123456789abcdef", "billing", 123_456, 5_000, 1, moved)
        )

    assert [len(heartbeat(claims)) for claims in range(3)] == [52, 62, 72]

    cells, state = 5_000, PartitionState(0)
    tracemalloc.start()
    for p in range(cells):
        record = ClaimingPartition(
            2, f"billing-{p % 50}", "0123456789abcdef", "billing", p, "orders", p, 5_000, -1
        )
        apply(state, p, encode(record))
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 250 < grown / cells < 450
