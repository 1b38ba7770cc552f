"""Random histories of consumers on every kind of topic there is, on a real Kafka."""
