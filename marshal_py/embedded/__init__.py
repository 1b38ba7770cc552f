"""Real Apache Kafka and PostgreSQL from registry packages, for tests and demos."""
