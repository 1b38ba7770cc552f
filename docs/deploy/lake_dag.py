"""Every night, for Airflow: the outbox's rows and the day before into the lake, then its care.

Put it among the DAGs, and the names below where they belong. Each task can be started again at any
moment. `lake_run` fails when the day was not as expected (exit code 1); the tables are written all
the same, and `lake_maintain` runs. A run of a DAG is what its last tasks are, hence `alarm`: it
fails when any other task has failed.
"""

from __future__ import annotations

import datetime as dt

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

BROKERS = "kafka:9092"
LAKE = "/data/lake"
ARCHIVE = "/data/archive"
ROWS = f"harvest lake --lake {LAKE} --outbox shop/outbox"

with DAG(
    "marshal_lake",
    schedule="30 2 * * *",  # late enough for what was on its way at midnight
    start_date=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 2, "retry_delay": dt.timedelta(minutes=10)},
) as dag:
    rows = BashOperator(
        task_id="outbox_rows",
        # The archive has no row of the last day: those are in the table, which the worker's
        # variable OUTBOX_DSN names. First the table: what was dropped from it is in the archive.
        bash_command=f'{ROWS} --database "$OUTBOX_DSN" && {ROWS} --parquet {ARCHIVE}',
    )
    run = BashOperator(
        task_id="lake_run",
        bash_command=(
            f"marshal lake run -b {BROKERS} --lake {LAKE} --published orders "
            "--day {{ macros.ds_add(ds, -1) }}"
        ),
    )
    maintain = BashOperator(
        task_id="lake_maintain",
        bash_command=f"marshal lake maintain --lake {LAKE}",
        trigger_rule="all_done",
    )
    alarm = BashOperator(
        task_id="alarm", bash_command="exit 1", trigger_rule="one_failed", retries=0
    )
    rows >> run >> maintain
    [rows, run, maintain] >> alarm
