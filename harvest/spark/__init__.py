"""Spark pipelines over outbox tables: the reconciliation of what was published.

They need the extra `spark`: ``pip install 'marshal-py[harvest,spark]'``.
"""

from __future__ import annotations
