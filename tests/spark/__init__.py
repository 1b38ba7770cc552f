"""What runs on Spark, on real servers: ``python -m pytest tests/spark``.

On its own: each test starts a dozen processes.
"""
