"""Which names a topic of Kafka may have."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["is_topic"]

_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


def is_topic(name: str) -> bool:
    """Whether Kafka allows a topic to have this name."""
    return _TOPIC.fullmatch(name) is not None and name not in (".", "..")
