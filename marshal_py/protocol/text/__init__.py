"""Version 1 of the protocol, as Go Marshal speaks it: `Marshal(..., wire="text")`. Pure."""
