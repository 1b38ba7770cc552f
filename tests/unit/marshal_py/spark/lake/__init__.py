"""The lake, where it needs no Spark."""

from __future__ import annotations
