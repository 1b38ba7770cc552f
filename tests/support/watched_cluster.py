"""What stands in for `marshal_py.spark.watch.cluster_watched` where there is no cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

__all__ = ["watched_sessions"]


def watched_sessions(monkeypatch: pytest.MonkeyPatch, module: object) -> list[object]:
    """Have a module watch nothing; return the sessions that it would watch now."""
    watched: list[object] = []

    @contextmanager
    def watch(spark: object) -> Iterator[None]:
        watched.append(spark)
        yield
        watched.remove(spark)

    monkeypatch.setattr(module, "cluster_watched", watch)
    return watched
