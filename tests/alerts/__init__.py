"""The alert rules on what real processes showed in each failure.

`python -m tests.alerts` starts brokers, a database, exporters, consumers and harvesters, lets each
failure happen to some of them, and scrapes their ``/metrics`` every 15 s, as Prometheus does.
What the rules look at is kept as ``series/*.yaml``, in promtool's notation;
`tests/unit/marshal_py/telemetry/test_recorded_alerts.py` applies the rules to it.
"""

from __future__ import annotations

import logging
from typing import Final

__all__ = ["logger"]

logger: Final = logging.getLogger("tests.alerts")
