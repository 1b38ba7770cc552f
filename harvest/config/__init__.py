"""The configuration of a harvester: our `reaper.yaml`, and goharvest's, unchanged.

In: a file or a text (`load`). Out: a `ReaperConfig` (`model`, with `destinations`), or one error
that tells every problem and shows no secret (`validation`). `goharvest` translates goharvest's.
"""
