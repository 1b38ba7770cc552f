"""What several tests of clients need."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_handler() -> Iterator[None]:
    """SIGTERM as at the start of a program, whatever clients of other tests have left."""
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGTERM, before)
