"""How a command ends: errors as one line on standard error and an exit code.

0 all well; 1 a finding (something is wrong with what was looked at); 2 the command or its
configuration is wrong; 3 the environment is (no broker, no topic, a missing package); 4 an error
that nobody foresaw, with its traceback; 130 after Ctrl-C.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Final, NoReturn

import typer
from confluent_kafka import KafkaError, KafkaException
from rich.markup import escape

from marshal_py.cli.output import console, discard
from marshal_py.errors import Blame, MarshalError, TopicMissing
from marshal_py.printable import printable

__all__ = [
    "ENVIRONMENT",
    "EXIT_CODES",
    "FINDING",
    "INTERRUPTED",
    "UNFORESEEN",
    "errors_as_exit_codes",
    "exit_code",
    "fail",
]

FINDING: Final = 1
USAGE: Final = 2
ENVIRONMENT: Final = 3
UNFORESEEN: Final = 4
INTERRUPTED: Final = 130

EXIT_CODES: Final[dict[Blame, int]] = {
    "usage": USAGE,
    "configuration": USAGE,
    "log": FINDING,
    "environment": ENVIRONMENT,
}


def fail(message: str, code: int, *, lines: bool = False) -> NoReturn:
    """End the command with one line on standard error, in which nothing of a stranger's is raw.

    With `lines` it may have several.
    """
    text = escape(printable(message, lines=lines))
    console(stderr=True).print(f"[bold red]error:[/] {text}")
    raise typer.Exit(code)


def exit_code(error: MarshalError) -> int:
    """Return the exit code that tells whose fault `error` is."""
    return ENVIRONMENT if isinstance(error, TopicMissing) else EXIT_CODES[error.blame]


@contextlib.contextmanager
def errors_as_exit_codes() -> Iterator[None]:
    """Turn our errors, Kafka's, Ctrl-C and a closed pipe into one line and an exit code."""
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
        discard(sys.stdout)  # the reader (`| head`) has seen enough
        raise typer.Exit(0) from None
