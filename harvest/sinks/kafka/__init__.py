"""Kafka as a sink: in transactions, idempotent, or as one destination of several."""
