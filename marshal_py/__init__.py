"""Coordination on nothing but Kafka."""
