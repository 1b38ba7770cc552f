"""What an application needs to write to its outbox, in its own transaction. No Kafka client.

In: records, and the caller's connection. Out: rows. Read `stasher`, then `record`.
"""
