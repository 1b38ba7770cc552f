"""`marshal demo`: an outbox, harvesters and consumers on real servers, faults, and a full account.

A writer process commits and rolls back transactions with outbox rows. Three harvesters compete to
publish them to Kafka; three consumers share the topic through claims. A leader and a consumer are
killed, others are paused past their leases and woken. In the end `compare` sets the database, Kafka
and what the consumers did side by side.
"""
