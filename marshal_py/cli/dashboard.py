"""`marshal dashboard`: the web page, served by one command."""

from __future__ import annotations

import importlib.util
import signal
import socket
from typing import TYPE_CHECKING, Annotated, Final

import typer

from marshal_py.admin.connection import Connection
from marshal_py.admin.formatting import safe
from marshal_py.admin.world_reader import wire_of
from marshal_py.cli.command import command
from marshal_py.cli.exit_codes import ENVIRONMENT, fail
from marshal_py.cli.options import LONGEST_S, Interval, JsonFlag, WireFlag
from marshal_py.cli.output import console, log_to_stderr, print_json
from marshal_py.errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from marshal_py.dashboard.log_follower import LogFollower

__all__ = ["dashboard"]

DEFAULT_PORT: Final = 8090
_VARIABLE: Final = "MARSHAL_DASHBOARD_TOKEN"


@command()
def dashboard(
    connection: Connection,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen. Beyond this machine, a token is needed: it is printed.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65_535, help="0: any free port.")
    ] = DEFAULT_PORT,
    history_s: Annotated[
        float,
        typer.Option(
            "--history",
            min=0.0,
            max=LONGEST_S,
            metavar="SECONDS",
            help="How far back the timeline reaches at once; older moments are read when asked.",
        ),
    ] = 3_600.0,
    lag_every_s: Annotated[
        float,
        typer.Option(
            "--lag-every",
            min=0.0,
            max=LONGEST_S,
            metavar="SECONDS",
            help="How often to ask where topics end; 0: never.",
        ),
    ] = 5.0,
    write: Annotated[
        bool,
        typer.Option(
            "--write",
            help="Let the page pause and resume groups, set positions, and replay dead letters.",
        ),
    ] = False,
    dead_letters: Annotated[
        str,
        typer.Option(
            metavar="PATTERN", help="Which topics hold dead letters; * and ? stand for anything."
        ),
    ] = "*.dlq",
    user_header: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A header by which your proxy says who asks, for the audit trail.",
        ),
    ] = None,
    token: Annotated[
        bool, typer.Option("--token", help="Need a token on this machine, too.")
    ] = False,
    host_names: Annotated[
        list[str] | None,
        typer.Option(
            "--host-name",
            metavar="NAME",
            help="Another name under which this machine is asked; may be repeated.",
        ),
    ] = None,
    wire: WireFlag = "msgpack",
    interval_s: Interval = 60,
    as_json: JsonFlag = False,
) -> None:
    """Serve the dashboard: who holds what, live and at any moment of the past.

    Reads the log and takes no part: nothing is written, no member appears, unless --write is
    given; who did what is then kept in a topic, COORDINATION-TOPIC.audit. Needs the extra
    `dashboard`. With --json, one line says where it listens. A token of your own is that of
    MARSHAL_DASHBOARD_TOKEN, and is not printed.

    [bold]Examples[/]

      marshal dashboard -b localhost:9092

      marshal dashboard --host 0.0.0.0 --port 8443 --history 86400

      marshal dashboard --wire text     (a log shared with Go Marshal)
    """
    for module in ("starlette", "uvicorn"):
        if importlib.util.find_spec(module) is None:
            fail(
                f"the dashboard needs {module}: run `pip install 'marshal-py[dashboard]'`",
                ENVIRONMENT,
            )
    from marshal_py.dashboard.app import create_app
    from marshal_py.dashboard.guard import given_token, is_loopback, new_token
    from marshal_py.dashboard.log_follower import LogFollower

    given = given_token(_VARIABLE)
    made = new_token() if given is None and (token or not is_loopback(host)) else None
    listener = _listen(host, port)
    follower = LogFollower(
        connection,
        history_s=history_s,
        lag_every_s=lag_every_s,
        wire=wire_of(wire, interval_s),
    )
    try:
        if write:
            log_to_stderr(name="marshal_py.dashboard.actions")
        app = create_app(
            follower,
            token=given or made,
            host_names=tuple(host_names or ()),
            write=write,
            dead_letters=dead_letters,
            user_header=user_header,
        )
        follower.start()
        _announce(listener, host, made, as_json=as_json)
        _serve(app, follower, listener)
    finally:
        listener.close()
        follower.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)  # whoever reads the address may come at once
    except OSError as error:
        raise ConfigurationError(
            f"cannot listen at {host}:{port}: {error.strerror}; choose another with --host, --port"
        ) from None
    return listener


def _announce(listener: socket.socket, host: str, secret: str | None, *, as_json: bool) -> None:
    port = listener.getsockname()[1]
    name = host if host not in ("0.0.0.0", "::") else socket.getfqdn()  # noqa: S104
    url = f"http://{f'[{name}]' if ':' in name else name}:{port}/"
    if secret is not None:
        url += f"?token={secret}"
    if as_json:
        print_json({"url": url}, indent=None)
        return
    console().print(f"Dashboard: [bold]{safe(url)}[/]")
    if secret is not None:
        console().print("Whoever has this address may look; the token is not shown again.")


def _serve(app: Starlette, follower: LogFollower, listener: socket.socket) -> None:
    import uvicorn

    class Server(uvicorn.Server):
        interrupted = False

        def handle_exit(self, sig: int, _: object) -> None:
            # uvicorn's own would raise the signal again in the end, and SIGTERM is a normal end.
            follower.end_streams()  # streams without an end would hold the process
            self.force_exit = self.should_exit
            self.should_exit = True
            self.interrupted = self.interrupted or sig == signal.SIGINT

    settings = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,  # addresses may hold the token
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    server = Server(settings)
    server.run(sockets=[listener])
    if server.interrupted:
        raise KeyboardInterrupt
