"""What every command shares: the connection flags, consoles, and errors as exit codes.

Exit codes: 0 all well; 1 a finding (something is wrong with what was looked at); 2 the command or
its configuration is wrong; 3 the environment is (no broker, no topic, a missing package); 130 after
Ctrl-C.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console, RenderableType
from rich.table import Table

from marshal_py.admin.connection import Connection, Flags
from marshal_py.admin.formatting import parse_moment, safe
from marshal_py.errors import Blame, InvalidArgument, MarshalError, TopicMissing
from marshal_py.protocol.wire import WireName

__all__ = [
    "ENVIRONMENT",
    "FINDING",
    "USAGE",
    "AtMoment",
    "GroupFilter",
    "Interval",
    "JsonFlag",
    "Observe",
    "Settings",
    "TopicFilter",
    "WireFlag",
    "command",
    "console",
    "errors_as_exit_codes",
    "fail",
    "moment",
    "new_app",
    "note",
    "print_json",
    "reflow",
    "show",
    "table",
]

FINDING: Final = 1
USAGE: Final = 2
ENVIRONMENT: Final = 3
INTERRUPTED: Final = 130

_EXIT_CODES: Final[dict[Blame, int]] = {
    "usage": USAGE,
    "configuration": USAGE,
    "log": FINDING,
    "environment": ENVIRONMENT,
}


def new_app(**settings: Any) -> typer.Typer:
    """Return a typer app with the settings that all of ours have."""
    return typer.Typer(
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        # A traceback with local variables would show passwords.
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        **settings,
    )


# Output. Standard output is for what was asked; notes and errors go to standard error.


def console(*, stderr: bool = False, wide: bool = True) -> Console:
    """Return a console with colours on a terminal only.

    `wide`: long lines are left to the terminal, so that no name is ever cut. Otherwise what is
    printed on a terminal is fitted to it.
    """
    stream = sys.stderr if stderr else sys.stdout
    width = _WIDE if wide or not stream.isatty() else None
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=width)


_WIDE: Final = 10_000


def show(out: Console, *renderables: RenderableType) -> None:
    """Print tables, without the blanks at the ends of lines where nobody would see them."""
    if out.is_terminal:
        out.print(*renderables, sep="\n")
        return
    with out.capture() as captured:
        out.print(*renderables, sep="\n")
    for line in captured.get().splitlines():
        out.out(line.rstrip(), highlight=False)


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table without a frame; the columns in `right` hold numbers."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for column in columns:
        made.add_column(
            column, justify="right" if column in right else "left", no_wrap=True, overflow="fold"
        )
    return made


def note(text: str) -> None:
    """Say something about the answer, on standard error."""
    console(stderr=True).print(safe(text), style="dim")


def print_json(document: object, *, indent: int | None = 2) -> None:
    """Print one JSON document."""
    sys.stdout.write(json.dumps(document, indent=indent, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def fail(message: str, code: int) -> NoReturn:
    """End the command with one line on standard error."""
    text = "\n".join(map(safe, message.splitlines()))
    console(stderr=True).print(f"[bold red]error:[/] {text}")
    raise typer.Exit(code)


def exit_code(error: MarshalError) -> int:
    """Return the exit code that tells whose fault `error` is."""
    return ENVIRONMENT if isinstance(error, TopicMissing) else _EXIT_CODES[error.blame]


@contextlib.contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn our errors, Kafka's, Ctrl-C and a closed pipe into one line and an exit code."""
    from confluent_kafka import KafkaError, KafkaException

    try:
        yield
        sys.stdout.flush()
    except MarshalError as error:
        fail(str(error), exit_code(error))
    except KafkaException as error:
        problem = error.args[0]
        fail(f"Kafka: {problem.str() if isinstance(problem, KafkaError) else problem}", ENVIRONMENT)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; the interpreter must not flush into the pipe again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


# The flags that every command takes, before or after its name.

_PANEL: Final = "Connection"

Bootstrap = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT,…",
        help="The Kafka brokers; or $MARSHAL_BOOTSTRAP_SERVERS.",
        rich_help_panel=_PANEL,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        metavar="KEY=VALUE",
        help="A librdkafka setting, such as -X security.protocol=SSL; may be repeated.",
        rich_help_panel=_PANEL,
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="librdkafka settings in a .properties or .yaml file; or $MARSHAL_CONFIG.",
        rich_help_panel=_PANEL,
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        help="How long to wait for the brokers: 10.",
        rich_help_panel=_PANEL,
    ),
]
JsonFlag = Annotated[
    bool, typer.Option("--json", help="Print JSON instead of text.", show_default=False)
]
Observe = Annotated[
    float,
    typer.Option(
        "--observe",
        min=0.0,
        metavar="SECONDS",
        help="Watch the log for so long, and judge silence by what was seen.",
    ),
]
AtMoment = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="As it was then: 02:13, 2026-11-21T02:13:00Z, or so long ago (90s, 2h).",
    ),
]
GroupFilter = Annotated[
    str | None, typer.Option("--group", "-g", metavar="GROUP", help="Of this group only.")
]
TopicFilter = Annotated[
    str | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Of this topic only.")
]
WireFlag = Annotated[
    WireName,
    typer.Option(
        "--wire", help="The records' version: msgpack, or text for a log shared with Go Marshal."
    ),
]
Interval = Annotated[
    int,
    typer.Option(
        "--interval",
        min=1,
        metavar="SECONDS",
        help="With --wire text: the heartbeat interval that all its clients have.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Say more, on standard error.", show_default=False)
]


def moment(text: str | None) -> int | None:
    """Return what `--at` was given, in ms since 1970; not later than now.

    Raises `InvalidArgument`.
    """
    if text is None:
        return None
    now_ms = time.time_ns() // 1_000_000
    found_ms = parse_moment(text, now_ms)
    if found_ms > now_ms:
        raise InvalidArgument(f"--at {text!r} lies in the future")
    return found_ms


def topic_option(*names: str) -> Any:
    """Return the option for the coordination topic under these names."""
    return Annotated[
        str | None,
        typer.Option(
            *names,
            metavar="NAME",
            help="The coordination topic: __marshal, or $MARSHAL_TOPIC.",
            rich_help_panel=_PANEL,
        ),
    ]


def command(
    *, coordination_topic: tuple[str, ...] = ("--coordination-topic", "--topic")
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the connection flags, and turn errors into exit codes.

    The decorated function takes a `Connection` first; its other parameters are its own options.
    `coordination_topic` names the option for that topic, where `--topic` has another meaning.
    """
    flags: dict[str, Any] = {
        "bootstrap_servers": Bootstrap,
        "settings": Settings,
        "config_file": ConfigFile,
        "coordination_topic": topic_option(*coordination_topic),
        "timeout_s": Timeout,
        "verbose": Verbose,
    }

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(ctx: typer.Context, **given: Any) -> None:
            with errors_as_exit_codes():
                mine = _flags({name: given.pop(name) for name in flags})
                function(Connection.of(mine.over(ctx.obj or Flags())), **given)

        parameters = [
            inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
            *(p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own),
            *(
                inspect.Parameter(
                    name,
                    inspect.Parameter.KEYWORD_ONLY,
                    annotation=annotation,
                    default=False if name == "verbose" else None,
                )
                for name, annotation in flags.items()
            ),
        ]
        # typer reads the options from the signature.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__name__, run.__doc__ = function.__name__, reflow(function.__doc__ or "")
        run.__module__ = function.__module__
        return run

    return decorate


def reflow(doc: str) -> str:
    """Join the lines of each paragraph, since typer would keep them; indented ones stay."""
    paragraphs = inspect.cleandoc(doc).split("\n\n")
    return "\n\n".join(p if p.startswith(" ") else p.replace("\n", " ") for p in paragraphs)


def global_flags(
    ctx: typer.Context,
    bootstrap_servers: Bootstrap = None,
    settings: Settings = None,
    config_file: ConfigFile = None,
    coordination_topic: topic_option("--topic", "--coordination-topic") = None,  # type: ignore[valid-type]
    timeout_s: Timeout = None,
    verbose: Verbose = False,
) -> None:
    """Keep the flags that stand before the command's name, and the environment's, for it."""
    given = _flags({name: value for name, value in locals().items() if name != "ctx"})
    config = os.environ.get("MARSHAL_CONFIG")
    environment = Flags(
        os.environ.get("MARSHAL_BOOTSTRAP_SERVERS"),
        config_file=Path(config) if config else None,
        topic=os.environ.get("MARSHAL_TOPIC"),
    )
    ctx.obj = given.over(environment)


def _flags(given: dict[str, Any]) -> Flags:
    if given["verbose"]:
        logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
        logging.getLogger("marshal_py").setLevel(logging.INFO)
    return Flags(
        given["bootstrap_servers"],
        tuple(given["settings"] or ()),
        given["config_file"],
        given["coordination_topic"],
        given["timeout_s"],
    )
