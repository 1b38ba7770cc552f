"""Transactional-outbox harvester on marshal_py."""
