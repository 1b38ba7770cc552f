"""`Consumer.run`: handlers side by side, retries, dead letters.

In: fetched messages and a function. Out: positions that may be stored, and failures dealt with.
Read `runner` first: it feeds `tasks` (what waits and runs, and what came of it, under one lock).
`schedule` decides which message may run next (pure), `workers` run it, `retries` decides what a
failure comes to, `ending` knows until when anything is waited for, `stuck` reports what does not
return.
"""
