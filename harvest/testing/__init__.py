"""In-memory outbox tables and a broker, held to the contract of the real ones, for tests."""
