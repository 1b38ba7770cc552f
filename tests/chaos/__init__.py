"""Real faults on real servers, recorded from outside and judged by a checker of its own.

`python -m tests.chaos --minutes 3 --seed 1` starts a Kafka cluster of three brokers, a PostgreSQL
and a dozen client processes, breaks what can be broken, heals it all, and then judges what the
processes, the logs and the database say. The modules `rawlog` and `checker` share no code with the
product.
"""
