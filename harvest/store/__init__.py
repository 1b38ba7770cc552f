"""What a harvester needs from a database, and the databases that provide it."""
