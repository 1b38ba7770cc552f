"""What every command has: the connection flags, before its name or after it, and exit codes.

`command` gives them to a function, `global_flags` to the program.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from typer.core import TyperGroup

from marshal_py.admin.connection import Connection, Flags
from marshal_py.admin.formatting import safe
from marshal_py.cli.exit_codes import INTERRUPTED, UNFORESEEN, errors_as_exit_codes
from marshal_py.cli.options import (
    BootstrapServers,
    ConfigFile,
    Settings,
    Timeout,
    Verbose,
    coordination_topic_option,
)
from marshal_py.cli.output import log_to_stderr, say
from marshal_py.cli.progress import LogProgress

__all__ = [
    "EXIT_CODES_HELP",
    "Commands",
    "command",
    "global_flags",
    "new_app",
    "reflow",
    "version_flag",
]

EXIT_CODES_HELP: Final = (
    "Exit codes: 0 all well, 1 a finding, 2 wrong usage or configuration, 3 the environment "
    "(no broker, no topic, a package missing), 4 an error that nobody foresaw, 130 after Ctrl-C."
)


def _show_version(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        typer.echo(f"{ctx.info_name} {version('marshal-py')}")
        raise typer.Exit


Version = Annotated[
    bool,
    typer.Option(
        "--version", help="Show the version and end.", callback=_show_version, is_eager=True
    ),
]


_ClickException: Final[type[Exception]] = typer.BadParameter.__mro__[2]
"""Of click, or of the copy of it that newer versions of typer have."""


class Commands(TyperGroup):
    """Wrong usage is told as all errors are: in a line that begins with ``error:``."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """See `TyperGroup.main`."""
        run = partial(
            super().main,
            args,
            prog_name,
            complete_var,
            standalone_mode=False,
            windows_expand_args=windows_expand_args,
            **extra,
        )
        if not standalone_mode:
            return run()
        try:
            code = run()
        except typer.Abort:
            sys.exit(INTERRUPTED)
        except _ClickException as error:
            context: typer.Context | None = getattr(error, "ctx", None)
            message = cast(Any, error).format_message()
            if not message or type(error).__name__ == "NoArgsIsHelpError":
                cast(Any, error).show()
            else:
                hint = "" if context is None else f" Try `{context.command_path} -h`."
                say(f"error: {message.rstrip('.')}.{hint}", stderr=True)
            sys.exit(cast(Any, error).exit_code)
        except Exception:
            # Python itself would end with 1, which says that something was found.
            print("\n".join(map(safe, traceback.format_exc().splitlines())), file=sys.stderr)
            sys.exit(UNFORESEEN)
        sys.exit(code if isinstance(code, int) else 0)


def new_app(**settings: Any) -> typer.Typer:
    """Return a typer app with the settings that all of ours have."""
    return typer.Typer(
        **{"cls": Commands, **settings},
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        # A traceback with local variables would show passwords.
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
    )


def command(
    *, coordination_topic: tuple[str, ...] = ("--coordination-topic", "--topic")
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the connection flags, and turn errors into exit codes.

    The decorated function takes a `Connection` first; its other parameters are its own options.
    `coordination_topic` names the option for that topic, where `--topic` has another meaning.
    """
    flags: dict[str, Any] = {
        "bootstrap_servers": BootstrapServers,
        "settings": Settings,
        "config_file": ConfigFile,
        "coordination_topic": coordination_topic_option(*coordination_topic),
        "timeout_s": Timeout,
        "verbose": Verbose,
    }

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(ctx: typer.Context, **given: Any) -> None:
            with errors_as_exit_codes():
                mine = _flags({name: given.pop(name) for name in flags})
                connection = Connection.of(mine.over(ctx.obj or Flags()))
                function(replace(connection, progress=LogProgress()), **given)

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
    bootstrap_servers: BootstrapServers = None,
    settings: Settings = None,
    config_file: ConfigFile = None,
    coordination_topic: coordination_topic_option("--topic", "--coordination-topic") = None,  # type: ignore[valid-type]
    timeout_s: Timeout = None,
    verbose: Verbose = False,
    show_version: Version = False,
) -> None:
    """Keep the flags that stand before the command's name, and the environment's, for it."""
    given = _flags(
        {name: value for name, value in locals().items() if name not in ("ctx", "show_version")}
    )
    config = os.environ.get("MARSHAL_CONFIG")
    environment = Flags(
        os.environ.get("MARSHAL_BOOTSTRAP_SERVERS"),
        config_file=Path(config) if config else None,
        topic=os.environ.get("MARSHAL_TOPIC"),
    )
    ctx.obj = given.over(environment)


def version_flag(show_version: Version = False) -> None:
    """Let a program without flags of its own know `--version`."""
    del show_version  # done by its callback


def _flags(given: dict[str, Any]) -> Flags:
    if given["verbose"]:
        log_to_stderr("%(levelname)s %(name)s: %(message)s")
        logging.getLogger("marshal_py").setLevel(logging.INFO)
    return Flags(
        given["bootstrap_servers"],
        tuple(given["settings"] or ()),
        given["config_file"],
        given["coordination_topic"],
        given["timeout_s"],
    )
