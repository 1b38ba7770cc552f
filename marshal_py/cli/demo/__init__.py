"""`marshal demo`: an outbox, harvesters and consumers on real servers, faults, and a full account.

A writer process commits and rolls back transactions with outbox rows. Three harvesters compete to
publish them to Kafka; three consumers share the topic through claims. A leader and a consumer are
killed, others are paused past their leases and woken. In the end `compare` sets the database, Kafka
and what the consumers did side by side.

`command` has the options, `run` the order of things. `environment` starts servers and makes topics
and tables; `processes` starts, kills and pauses; `scenario` says what happens when, and sees it by
`observers`, while `progress` shows it; `compare`, `audit` and `report` make the account. `writer`
and `consumer` are processes of their own.
"""
