"""What `harvest bench` takes from a configuration, and what it must not."""

from __future__ import annotations

import pytest

from harvest.config.load import parse
from harvest.config.model import Mode
from harvest.runtime.benchmark import scratch_config

OURS = "kafka: {bootstrap.servers: 'k:1'}\ndatabase: host=db\ngroup: prod\noutbox: prod\n"
PRIMARY = "mode: range\nprimary: {database: host=prod}\n"
SAME = {
    "kafka",
    "producer",
    "partitioner",
    "database",
    "direct_database",
    "limits",
    "harvest_id",
    "delivery",
}


@pytest.mark.parametrize("mode", ["mark", "range"])
@pytest.mark.parametrize(
    "prod",
    [
        "destinations: {shop: {http: {uri: 'http://prod/'}}}\nroute: shop\n",
        "columns: {headers: {tenant: tenant_id}, partition: p}\n",
        "mode: range\nshards: 4\npartitions: {archive: prod, rows: 7, retain_hours: 0}\n",
        PRIMARY,
        "mode: wal\nwal: {slot: prod, standby: host=prod}\n",
        "cloudevents: {source: '{header.prod}'}\nidempotency_key: '{header.prod}'\n",
        "bad_rows: {on_bad_row: stop}\nname: prod\ncoordination: {topic: prod}\n",
    ],
)
def test_nothing_of_what_is_in_use_is_touched(prod: str, mode: Mode) -> None:
    made = scratch_config(parse(OURS + prod), mode, "scratch")
    assert "prod" not in repr(made)
    assert made == scratch_config(parse(OURS), mode, "scratch")


def test_what_decides_how_fast_it_goes_is_as_in_the_file() -> None:
    given = parse(
        OURS + "direct_database: host=direct\nproducer: {linger.ms: 7}\npartitioner: java\n"
        "limits: {max_in_flight_records: 7}\nharvest_id: shop\ndelivery: idempotent\n"
        "coordination: {interval_ms: 70}\n"
    )
    made = scratch_config(given, "mark", "scratch")
    assert made.model_dump(include=SAME) == given.model_dump(include=SAME)
    assert made.coordination.interval_ms == 70
    assert scratch_config(given, "range", "scratch").delivery == "transactional"
