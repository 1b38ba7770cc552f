"""Handlers that do not return: reported, and neither killed nor given up."""

from __future__ import annotations

from marshal_py.client.structured_logs import Fields
from marshal_py.consumer.handlers.options import HandlerOptions, Stuck
from marshal_py.consumer.handlers.tasks import Tasks, Workers

__all__ = ["StuckHandlers"]


class StuckHandlers:
    """Looks for what has been running for longer than `HandlerOptions.stuck_after_s`."""

    def __init__(
        self, tasks: Tasks, workers: Workers, options: HandlerOptions, log: Fields, client_id: str
    ) -> None:
        self._tasks = tasks
        self._workers = workers
        self._options = options
        self._log = log
        self._client_id = client_id

    def look(self, now_s: float) -> None:
        """Report what is stuck, and again each time that it has taken twice as long."""
        limit_s = self._options.stuck_after_s
        if limit_s is None:
            return
        with self._tasks.lock:
            stuck = [task for task in self._tasks.running if now_s - task.since_s > limit_s]
            self._tasks.set_stuck(stuck)
            news = [
                task
                for task in stuck
                if not task.reported_s or now_s - task.since_s >= 2 * task.reported_s
            ]
        for task in news:
            task.reported_s = now_s - task.since_s
            name, stack = self._workers.describe(task.worker)
            report = Stuck([item.payload for item in task.items], task.reported_s, name, stack)
            self._log.error(
                "%s: %s\n%s", self._client_id, report, stack.rstrip(), extra=task.part.log_fields
            )
            if self._options.on_stuck is not None:
                try:
                    self._options.on_stuck(report)
                except Exception:
                    self._log.exception("%s: on_stuck raised", self._client_id)
