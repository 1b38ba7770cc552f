"""HTTP endpoints as destinations: one request a message."""
