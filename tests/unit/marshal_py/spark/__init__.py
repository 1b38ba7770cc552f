"""The Spark pipelines, where they need no Spark."""

from __future__ import annotations
