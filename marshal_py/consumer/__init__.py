"""`Consumer`: the partitions of topics, shared among the members of a group, over claims.

In: topics, a group, a delivery guarantee. Out: messages, one by one, in batches or to handlers
(`handlers`), while the lease stands, and stored positions. Read `consumer` first, then
`assignment` (claims come and go), `fetcher` (messages of what is assigned) and `held_partition`
(what of one partition is handed out and done); `at_most_once` claims messages before it hands them
out; `aio` is the face for asyncio.
"""
