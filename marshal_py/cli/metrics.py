"""`marshal metrics`: a Grafana dashboard, alert rules, and an exporter of what all groups do."""

from __future__ import annotations

import signal
import threading
from importlib.resources import files
from typing import Annotated, Any, Final

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.world_reader import catch_up, open_reader
from marshal_py.cli.command import command, new_app
from marshal_py.cli.exit_codes import ENVIRONMENT, errors_as_exit_codes, fail
from marshal_py.cli.output import note
from marshal_py.client.log_reader import Hangs, LogReader, Truncated
from marshal_py.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnavailable,
    ConfigurationError,
    InvalidArgument,
    TopicMissing,
)

__all__ = ["app", "telemetry_file"]

TRY_AGAIN_S: Final = 2.0
RUNBOOKS: Final = "docs/operate/runbooks/"

app = new_app(help="Prometheus and Grafana: dashboard, alert rules, and an exporter.")


def telemetry_file(name: str) -> str:
    """Return the text of a file that lies in `marshal_py.telemetry`."""
    return (files("marshal_py.telemetry") / name).read_text(encoding="utf-8")


@app.command()
def dashboard() -> None:
    """Print a Grafana dashboard as JSON: groups, lag, claims, takeovers, consumers, harvesters.

    [bold]Examples[/]

      marshal metrics dashboard > marshal.json     (Grafana: Dashboards, New, Import)
    """
    with errors_as_exit_codes():
        typer.echo(telemetry_file("grafana.json"), nl=False)


@app.command()
def alerts(
    runbooks: Annotated[
        str,
        typer.Option("--runbooks", metavar="URL", help="Where you serve the runbooks' pages."),
    ] = RUNBOOKS,
) -> None:
    """Print alert rules for Prometheus, each with what to do, and the page that says more.

    [bold]Examples[/]

      marshal metrics alerts > marshal-alerts.yaml && promtool check rules marshal-alerts.yaml

      marshal metrics alerts --runbooks https://wiki.example/marshal/ > marshal-alerts.yaml
    """
    with errors_as_exit_codes():
        text = telemetry_file("alerts.yaml")
        typer.echo(text.replace(RUNBOOKS, runbooks.rstrip("/") + "/"), nl=False)


@app.command()
@command()
def serve(
    connection: Connection,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="Where to serve /metrics.")
    ] = "127.0.0.1:9464",
) -> None:
    """Serve the metrics of all groups, lag included, for Prometheus. Needs the extra `metrics`.

    Reads the log and takes part in nothing: it tells of a group whose clients are all dead. Clients
    and consumers have metrics of their own (`marshal_py.telemetry`). Ends with SIGTERM or Ctrl-C.

    [bold]Examples[/]

      marshal metrics serve -b localhost:9092 --listen 0.0.0.0:9464

      marshal metrics serve & curl -s localhost:9464/metrics | grep marshal_group_lag
    """
    try:
        from prometheus_client import CollectorRegistry, start_http_server

        from marshal_py.telemetry.group_metrics import GroupMetrics
    except ImportError:
        fail("this needs prometheus-client: run `pip install 'marshal-py[metrics]'`", ENVIRONMENT)
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidArgument(f"--listen {listen!r} must be HOST:PORT, such as 127.0.0.1:9464")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    lock, registry, collector, server = threading.Lock(), CollectorRegistry(), None, None
    while not stop.is_set():
        reader: LogReader | None = None
        try:
            reader = open_reader(connection)
            found = catch_up(connection, reader)
            found.limit_timestamps(100_000)
            if collector is None:
                collector = GroupMetrics(connection, found, lock)
                collector.ask()
                asking = threading.Thread(target=collector.ask_until, args=(stop,), daemon=True)
                asking.start()
                registry.register(collector)
                server = _listen(start_http_server, host.strip("[]"), int(port), registry)
                note(f"serving http://{host}:{server.server_port}/metrics")
            collector.view = found
            while not stop.is_set():
                messages = reader.poll(0.2)
                if reader.partition_count_error is not None:
                    raise reader.partition_count_error
                with lock:
                    for _, _, event in found.fold(messages):
                        collector.count(event)
        except Truncated as error:
            note(f"{error}; beginning again")
            # A client that hangs is no fault of the log.
            if collector is not None and not isinstance(error, Hangs):
                collector.restarts += 1
        except (AccessDenied, AuthenticationFailed):
            raise
        except (BrokerUnavailable, ConfigurationError, TopicMissing) as error:  # files are replaced
            if collector is None:
                raise
            note(f"{error}; trying on")
            stop.wait(TRY_AGAIN_S)
        finally:
            if reader is not None:
                reader.close()
    if server is not None:
        server.shutdown()


def _listen(start: Any, host: str, port: int, registry: Any) -> Any:
    try:
        server, _ = start(port, addr=host, registry=registry)
    except OSError as error:
        fail(f"--listen {host}:{port}: {error.strerror}", ENVIRONMENT)
    return server
