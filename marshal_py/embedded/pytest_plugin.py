"""pytest fixtures (filled in with the embedded servers)."""
