"""Spark pipelines over the coordination log: the audit, and the claim-gated source.

They need the extra `spark`: ``pip install 'marshal-py[spark]'``. Nothing here is imported unless it
is asked for.
"""

from __future__ import annotations
