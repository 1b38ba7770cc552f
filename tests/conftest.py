"""The fixtures for Kafka and PostgreSQL come from the package's own pytest plugin."""
