"""`harvest reap`: harvest until it is told to stop."""

from __future__ import annotations

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer

from harvest.cli.check import report
from harvest.cli.options import ConfigFile
from harvest.cli.outbox import open_outbox
from harvest.cli.stop_signals import STOP_SIGNALS
from harvest.config.load import load
from harvest.config.model import ReaperConfig
from harvest.runtime.monitor import Monitor
from harvest.runtime.process import Process, process
from harvest.runtime.status_server import parse_address, status_server
from marshal_py.cli.output import log_to_stderr

__all__ = ["reap"]

_LOG: Final = logging.getLogger("harvest")
_ALLOCATIONS: Final = 20_000


def reap(
    config: ConfigFile,
    create_topics: Annotated[
        bool,
        typer.Option("--create-topics", help="Make the coordination topics if they are missing."),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve /healthz and /metrics (Prometheus) here.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything, say where it would go on and which rows come first, and end.",
        ),
    ] = False,
) -> None:
    """Harvest, whenever this process leads, until SIGTERM or Ctrl-C.

    Start several: one works, the others stand by. On SIGTERM it finishes what is in flight, hands
    over and exits with 0.

    [dim]Example:[/dim] harvest reap --config reaper.yaml --listen 127.0.0.1:9101
    """
    if dry_run:
        if not report(open_outbox(config, None, None), preview=True):
            raise typer.Exit(1)
        return
    settings = load(config)
    if create_topics:
        coordination = settings.coordination.model_copy(update={"create_topics": True})
        settings = settings.model_copy(update={"coordination": coordination})
    log_to_stderr()
    logging.getLogger("harvest").setLevel(settings.logging.python_level())
    logging.getLogger("marshal_py").setLevel(settings.logging.python_level())
    _run(settings, None if listen is None else parse_address(listen))


def _run(settings: ReaperConfig, listen: tuple[str, int] | None) -> None:
    STOP_SIGNALS.install()
    collect_less_often()
    with process(settings) as running, _status_server(running, listen):
        STOP_SIGNALS.call(running.harvester.stop)
        running.harvester.run()
    _LOG.info("stopped: %d rows published", running.harvester.stats.published)


def collect_less_often() -> None:
    """Have Python look for garbage less often.

    Thousands of rows are under way and none of them is garbage, but by default all are looked at
    again after every 700 new ones, which takes a quarter of the time of reading them.
    """
    gc.freeze()  # what was imported stays
    gc.set_threshold(_ALLOCATIONS)


@contextmanager
def _status_server(running: Process, listen: tuple[str, int] | None) -> Iterator[None]:
    if listen is None:
        yield
        return
    monitor = Monitor(
        running.harvester, running.probes(), max_age_s=running.max_age_s, labels=running.labels
    )
    with status_server(monitor, listen):
        monitor.start()
        try:
            yield
        finally:
            monitor.close()
