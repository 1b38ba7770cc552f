"""The lake: a day of coordination and of outboxes as tables that can be asked what happened.

In: the coordination log, topics that an outbox is published to, and the outbox's rows. Out: Delta
tables, from what was read as it was (bronze) over what it means (silver) to what each day was like
(gold). Each step is one module: `bronze`, `silver`, `deliveries`, `gold`, and `run` puts them one
after the other; `tables` says what the tables hold and writes them. What is in them, and what holds
however often a run is killed or started twice: specs/AUDIT.md §7. Read `run` first.
"""

from __future__ import annotations
