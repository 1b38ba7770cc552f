"""The configuration of a harvester: our `reaper.yaml`, and goharvest's, unchanged."""
