"""`marshal run`: a handler as a service, without a program around it."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Final, NoReturn

import typer

from marshal_py.admin.connection import Connection
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import FINDING
from marshal_py.cli.output import log_to_stderr, say
from marshal_py.client.suggestions import did_you_mean
from marshal_py.consumer.consumer import Consumer
from marshal_py.consumer.options import Mode
from marshal_py.errors import ConfigurationError
from marshal_py.protocol.slots import MAX_SLOTS

__all__ = ["load_handler", "run"]

_LOOK_S: Final = 0.3
_TOLD_TO_END: Final = 128 + signal.SIGTERM


@command(coordination_topic=("--coordination-topic",))
def run(
    connection: Connection,
    handler: Annotated[
        str, typer.Argument(metavar="MODULE:HANDLER", help="The function that is given messages.")
    ],
    topics: Annotated[
        list[str], typer.Option("--topic", "-t", metavar="TOPIC", help="May be repeated.")
    ],
    group: Annotated[str, typer.Option("--group", "-g", metavar="GROUP", help="Who shares.")],
    workers: Annotated[int, typer.Option("--workers", min=1, metavar="N", help="At a time.")] = 8,
    mode: Annotated[Mode, typer.Option("--mode", help="What is promised.")] = "at_least_once",
    on_failure: Annotated[
        str,
        typer.Option("--on-failure", help="What then: stop, skip, dead_letter."),
    ] = "stop",
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Serve /healthz and /metrics there."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, metavar="N", help="Give it batches of up to so many."),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            min=1,
            max=MAX_SLOTS,
            metavar="N",
            help="Share partitions by keys, in so many slots each, as all members of the group do.",
        ),
    ] = None,
    create_topics: Annotated[
        bool, typer.Option("--create-topics", help="Make the coordination topics if need be.")
    ] = False,
    reload: Annotated[
        bool, typer.Option("--reload", help="Begin again whenever a .py file here has changed.")
    ] = False,
) -> None:
    """Run a handler for each message of some topics, until Ctrl-C or SIGTERM.

    The module is looked for here, too. The handler is called as `Consumer.run` calls it: with the
    message, and the claim if it takes one; in threads, or as coroutines if it is `async def`.
    A handler that calls `sys.exit` ends the command, with its code.

    [bold]Examples[/]

      marshal run billing:handle -b localhost:9092 --topic orders --group billing

      marshal run billing:handle -t orders -g billing --workers 16 --reload

      marshal run billing:handle -t orders -g billing --listen 0.0.0.0:8080
    """
    if reload:
        _reload([argument for argument in sys.argv[1:] if argument != "--reload"])
        return
    log_to_stderr()
    logging.getLogger("marshal_py").setLevel(logging.INFO)
    function = load_handler(handler)
    consumer = Consumer(
        connection.kafka,
        topics=topics,
        group_id=group,
        mode=mode,
        sharing="partitions" if slots is None else "keys",
        slots=slots or 16,
        topic=connection.topic,
        create_topics=create_topics,
        connect_timeout_ms=int(connection.timeout_s * 1000),
    )
    options: Any = {"workers": workers, "on_failure": on_failure, "batch_size": batch_size}
    code: object = 0
    try:
        with contextlib.nullcontext() if listen is None else _status(consumer, listen):
            stats = consumer.run(function, **options)
    except KeyboardInterrupt:  # let through when all was wound up
        stats = consumer.stats()
    except SystemExit as end:
        stats, code = consumer.stats(), end.code
    say(f"handled {stats.handled}, failed {stats.failures}", stderr=True)
    if code in (None, 0, _TOLD_TO_END):
        return
    if not isinstance(code, int):  # Python itself would print it as it is
        say(str(code), stderr=True)
        code = FINDING
    raise typer.Exit(code)


def _status(consumer: Consumer, listen: str) -> contextlib.AbstractContextManager[object]:
    from marshal_py.telemetry.status_server import serve_status

    return serve_status(consumer, listen)


def load_handler(where: str) -> Callable[..., Any]:
    """Import ``module:handler``; what is in the current folder is found. `ConfigurationError`."""
    module_name, _, path = where.partition(":")
    if not module_name or not path:
        raise ConfigurationError(f"{where!r} must be MODULE:HANDLER, such as billing:handle")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(
            f"there is no module {error.name!r}, here or where Python looks"
        ) from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(
                f"{where!r}: no {name!r} there{did_you_mean(name, dir(found))}"
            )
        found = getattr(found, name)
    if not callable(found):
        raise ConfigurationError(f"{where!r} is a {type(found).__name__}, not a function")
    function: Callable[..., Any] = found
    return function


def _reload(arguments: list[str]) -> None:
    """Run the command in a process of its own, anew after each change, until Ctrl-C."""
    program = [sys.executable, "-m", "marshal_py.cli", *arguments]

    def end(_number: int, _: FrameType | None) -> NoReturn:
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, end)
    while True:
        before = _changes()
        process = subprocess.Popen(program)
        try:
            while process.poll() is None and _changes() == before:
                time.sleep(_LOOK_S)
            if process.poll() is None:
                say("a file has changed: beginning again", stderr=True)
                process.terminate()
            else:
                say("it has ended: waiting for a change", stderr=True)
                while _changes() == before:
                    time.sleep(_LOOK_S)
            process.wait()
        except BaseException:  # Ctrl-C went to the process, too: it finishes what is in flight
            if process.poll() is None:
                process.terminate()
            process.wait()
            raise


def _changes() -> dict[Path, int]:
    """Return when each source file below the current folder was changed."""
    found = {}
    for folder, below, names in os.walk("."):
        below[:] = [name for name in below if not name.startswith((".", "__"))]
        for name in names:
            if name.endswith(".py"):
                path = Path(folder, name)
                try:
                    found[path] = path.stat().st_mtime_ns
                except OSError:  # it is gone by now
                    continue
    return found
