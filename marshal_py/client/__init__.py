"""The live client: it joins the protocol with a real log. Threads, Kafka and clocks live here.

In: what the user claims. Out: leases with fencing epochs, leaderships. One thread (`driver`) reads
the coordination topic (`log_reader`; `log_metadata` asks what it has, `snapshots` where to start
from), lets the fold and the claimant work, and appends what they ask for (`log_writer`). Read
`marshal` first, then `driver`, `claim` and `claims`; `leader_election` and `aio` (asyncio) stand on
them, `kafka_clients` makes the connections, `acl` says what a refused right was needed for.
"""

from marshal_py.printable import escape_logs

escape_logs(
    "marshal_py" + part
    for part in (
        "",
        ".consumer",
        ".dashboard",
        ".dashboard.actions",
        ".demo",
        ".doctor.features",
        ".groups",
        ".log",
        ".metrics",
        ".migrate",
        ".rdkafka",
        ".spark",
        ".text",
        ".transactions",
    )
)
