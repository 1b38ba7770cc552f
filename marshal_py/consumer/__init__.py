"""`Consumer`: the partitions of topics, shared among the members of a group, over claims.

In: topics, a group, a delivery guarantee. Out: messages, one by one, in batches or to handlers
(`handlers`), while the lease stands, and stored positions. `consumer` is the face (`aio` that for
asyncio), `core` puts the parts together: read these first. Then `assignment` (the thread: what to
hold, as the `assignor` decides) over `partitions` (each through its stages), `topics` and
`positions`; `fetcher` brings messages, and `at_least_once` or `at_most_once`, behind the interface
`delivery`, decides which go out; `iteration` is the loop over them. `held_partition` knows what of
one partition is handed out and done.
"""
