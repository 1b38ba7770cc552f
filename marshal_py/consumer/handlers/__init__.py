"""`Consumer.run`: handlers side by side, retries, dead letters.

In: fetched messages and a function. Out: positions that may be stored, and failures dealt with.
`schedule` decides which message may run next (pure), `workers` run it, `retries` decides what a
failure comes to, `runner` joins them. Read `runner` first.
"""
