"""Each sentence of specs/PROTOCOL.md that binds has a test, and each mark on a test a sentence."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.support import spec

SENTENCES = spec.sentences()
MARKED = spec.marked_tests()


def test_identifiers_are_defined_once_or_referred_to() -> None:
    letters = Counter(identifier[0] for identifier in set(SENTENCES))
    assert set(letters) == set("TRFCOSLEX")
    for identifier, times in Counter(SENTENCES).items():
        # §10 refers to sentences of §4.3.
        assert times == 1 or identifier in {"F-12", "F-13"}, identifier


@pytest.mark.parametrize("identifier", sorted(set(SENTENCES)))
def test_every_sentence_has_a_test(identifier: str) -> None:
    assert MARKED.get(identifier), f"no test is marked @spec({identifier!r})"


@pytest.mark.parametrize("identifier", sorted(MARKED))
def test_every_mark_has_a_sentence(identifier: str) -> None:
    assert identifier in SENTENCES, MARKED[identifier]


def test_sentences_that_bind_have_an_identifier() -> None:
    text, _ = spec.SPECIFICATION.read_text("utf-8").split(spec.TABLE_STARTS)
    text = text.split("## 2 ", 1)[1].split("## 9 ", 1)[0]
    prose = [p for p in text.split("\n\n") if not p.startswith(("|", "```", "    "))]
    for paragraph in prose:
        for sentence in re.split(r"(?<=[.:])\s", " ".join(paragraph.split())):
            if re.search(r"\bmust not\b|\bMUST\b|\bSHALL\b", sentence):
                assert "[" in sentence, sentence


def test_the_table_is_up_to_date() -> None:
    _, table = spec.SPECIFICATION.read_text("utf-8").split(spec.TABLE_STARTS)
    assert table.strip() == spec.table().strip(), "python -m tests.support.spec"
