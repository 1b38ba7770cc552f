"""What `Consumer.run` has done so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marshal_py.consumer.handlers.histograms import Histogram

__all__ = ["RunStats"]


@dataclass(frozen=True)
class RunStats:
    """What `Consumer.run` has done so far, and does now."""

    handled: int = 0
    """Messages done by a handler."""
    filtered: int = 0
    """Messages that `filter` left out: done, and no handler was given them."""
    failures: int = 0
    """Attempts that failed."""
    retries: int = 0
    """Attempts that failed and were followed, or will be, by another."""
    dead_lettered: int = 0
    skipped: int = 0
    handed_back: int = 0
    """Fetched, but not handled: the partition went to somebody else, or `run` was stopped."""
    buffered: int = 0
    """Messages that wait or run now."""
    buffered_bytes: int = 0
    running: int = 0
    """Messages in the hands of handlers now."""
    retrying: int = 0
    """Messages that wait for another attempt now."""
    stuck: int = 0
    """Handlers that have been running for longer than `stuck_after_s` now."""
    durations: Mapping[str, Histogram] = field(default_factory=dict, repr=False)
    """By topic: how long each attempt of a handler took, those that failed included."""
    ages: Mapping[str, Histogram] = field(default_factory=dict, repr=False)
    """By topic: how old each message was, by Kafka's timestamp, when a handler first got it."""
