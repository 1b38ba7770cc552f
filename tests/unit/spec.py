"""The link between specs/PROTOCOL.md and the tests: `@spec("F-12")` on a test says that it checks
the sentence with that identifier. `test_spec_sentences.py` keeps the two in step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Test = TypeVar("Test", bound=Callable[..., object])


def spec(*identifiers: str) -> Callable[[Test], Test]:
    """Mark a test as the check of these sentences of specs/PROTOCOL.md."""

    def mark(test: Test) -> Test:
        known: tuple[str, ...] = getattr(test, "spec_sentences", ())
        test.spec_sentences = known + identifiers  # type: ignore[attr-defined]
        return test

    return mark
