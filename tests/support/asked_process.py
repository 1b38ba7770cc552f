"""A Python program in a process of its own that is asked, and answers, line by line."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator

__all__ = ["asked"]


@contextlib.contextmanager
def asked(program: str, *arguments: str) -> Iterator[Callable[[object], str]]:
    """Run `program`, and yield what asks it: the answer is empty if it has died.

    It reads its standard input to the end, and must end with 0 then.
    """
    command, pipe = [sys.executable, "-c", program, *arguments], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        questions, answers = process.stdin, process.stdout

        def ask(question: object) -> str:
            questions.write(f"{question}\n")
            questions.flush()
            return answers.readline().strip()

        yield ask
        questions.close()
        assert process.wait(60) == 0
