"""What a fork does to a client whose lock somebody has, and to those of the parent."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, threading
from marshal_py.client import forks

class Client:
    def __init__(self):
        self.lock = threading.RLock()
        self.begun = self.done = 0
        self.told = []

    def forked(self, error):
        self.told.append(str(error))

    def is_free(self):
        free = []
        other = threading.Thread(target=lambda: free.append(self.lock.acquire(timeout=10)))
        other.start()
        other.join()
        return free == [True]

busy, idle, slow = Client(), Client(), Client()
for client in (busy, idle, slow):
    forks.watch(client)
is_inside = threading.Event()

def work():
    with busy.lock:
        busy.begun += 1
        is_inside.set()
        threading.Event().wait(0.1)  # the fork comes meanwhile
        busy.done += 1

is_held, may_end = threading.Event(), threading.Event()

def hold():
    with slow.lock:
        is_held.set()
        may_end.wait()

worker, holder = threading.Thread(target=work), threading.Thread(target=hold)
worker.start()
holder.start()
is_inside.wait()
is_held.wait()
child = os.fork()
if child == 0:
    well = (
        (busy.begun, busy.done) == (1, 1)
        and [len(client.told) for client in (busy, idle, slow)] == [1, 1, 1]
        and f"belongs to process {os.getppid()}" in busy.told[0]
        and busy.is_free() and idle.is_free() and slow.is_free()
    )
    os._exit(0 if well else 1)
may_end.set()
worker.join()
holder.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert busy.told == idle.told == [], "the parent goes on"
assert busy.is_free() and idle.is_free()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_waits_for_whoever_changes_a_client_and_keeps_no_lock() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
