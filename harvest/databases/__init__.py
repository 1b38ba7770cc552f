"""Outbox tables in real databases: one package each, and what they share.

In: a connection string (`registry`). Out: implementations of `harvest.core.interfaces`.
"""
