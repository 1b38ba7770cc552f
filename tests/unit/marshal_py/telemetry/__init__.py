"""Unit tests of metrics, traces, dashboards and alerts.

Alone: ``python -m pytest tests/unit/marshal_py/telemetry``.
"""
