"""Where rows are published: Kafka, HTTP endpoints, NATS JetStream."""
