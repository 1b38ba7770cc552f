"""Integration tests of metrics, traces, dashboards and alerts.

Alone: ``python -m pytest tests/integration/marshal_py/telemetry``.
"""
