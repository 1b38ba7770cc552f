"""Metrics, traces, and the files that go with them: a Grafana dashboard and Prometheus alerts.

In: a `Marshal`, a `Consumer`, or the log of all groups. Out: Prometheus metrics or OpenTelemetry
instruments and spans. Needs the extras `metrics` or `otel`.
"""
