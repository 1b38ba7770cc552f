"""The processes of the demo: started under a guard, killed, paused and woken."""

from __future__ import annotations

import os
import signal
import sys
from enum import Enum
from pathlib import Path
from typing import Any

from marshal_py.cli.demo.config import CONSUMERS, HARVESTERS, DemoConfig
from marshal_py.embedded.process import Guard, ServerProcess, tail
from marshal_py.errors import MarshalError

__all__ = ["DemoFailed", "ProcessState", "Processes"]


class DemoFailed(MarshalError):
    """The demo could not be carried out; what it shows was not put to the test."""

    blame = "environment"


class ProcessState(Enum):
    """Where a process is."""

    ABSENT = "not started"
    RUNNING = "running"
    KILLED = "killed"
    PAUSED = "paused"
    ENDED = "ended"


class Processes:
    """Writer, harvesters and consumers, by name. None outlives this process, however it ends."""

    def __init__(self, config: DemoConfig, guard: Guard, log_dir: Path) -> None:
        names = ("writer", *HARVESTERS, *CONSUMERS)
        self.states: dict[str, ProcessState] = dict.fromkeys(names, ProcessState.ABSENT)
        self._config = config
        self._guard = guard
        self._log_dir = log_dir
        self._processes: dict[str, ServerProcess] = {}

    def start(self, name: str) -> None:
        """Start a process, or start it again."""
        process = self._guard.spawn(
            [sys.executable, "-m", *self._arguments(name)],
            env=dict(os.environ),
            cwd=Path(self._config.folder),
            log=self._log_dir / f"{name}.log",
        )
        self._processes[name] = process
        self.states[name] = ProcessState.RUNNING

    def _arguments(self, name: str) -> list[str]:
        config = self._config
        if name == "writer":
            return ["marshal_py.cli.demo.writer", str(config.path)]
        if name in CONSUMERS:
            return ["marshal_py.cli.demo.consumer", str(config.path), name]
        path = Path(config.folder) / f"{name}.yaml"
        _write_yaml(path, config.reaper_yaml(name))
        return ["harvest.cli", "reap", "--config", str(path)]

    def kill(self, name: str) -> None:
        """SIGKILL."""
        self._processes[name].signal(signal.SIGKILL)
        self.states[name] = ProcessState.KILLED

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self._processes[name].signal(signal.SIGSTOP)
        self.states[name] = ProcessState.PAUSED

    def wake(self, name: str) -> None:
        """SIGCONT."""
        self._processes[name].signal(signal.SIGCONT)
        self.states[name] = ProcessState.RUNNING

    def ask_to_end(self, name: str) -> None:
        """SIGTERM; `join` waits."""
        self._processes[name].signal(signal.SIGTERM)

    def join(self, name: str, timeout_s: float) -> None:
        """Wait for a process that was asked to end. Raises `DemoFailed` if it does not."""
        process = self._processes[name]
        if not process.wait(timeout_s):
            raise DemoFailed(f"{name} did not end within {timeout_s:g} s{self._said(name)}")
        self.states[name] = ProcessState.ENDED
        code = process.poll()
        if code not in (0, 128 + signal.SIGTERM):
            raise DemoFailed(f"{name} ended with code {code}{self._said(name)}")

    def check(self) -> None:
        """Raise `DemoFailed` if a process that should run does not."""
        for name, state in self.states.items():
            if state is ProcessState.RUNNING:
                code = self._processes[name].poll()
                if code is not None:
                    raise DemoFailed(f"{name} ended with code {code}{self._said(name)}")

    def _said(self, name: str) -> str:
        said = tail(self._log_dir / f"{name}.log", lines=8).strip()
        return f"; the end of its log:\n{said}" if said else ""


def _write_yaml(path: Path, document: dict[str, Any]) -> None:
    import yaml

    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        yaml.safe_dump(document, file)
