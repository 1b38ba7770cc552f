"""The dashboard at 50 groups of 5,000 partitions: CPU of the server, bytes a second, frame time.

A crowd (`tests.benchmarks._crowd`) heartbeats for 250,000 claims, every 10 s each; members fall
silent and are replaced. A real Chromium shows the overview while it lasts. Linux only (/proc).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from marshal_py.embedded.kafka import EmbeddedKafka
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, percentile, run, say
from tests.support.chromium import Page, chromium

COORDINATORS = 8
INTERVAL_MS = 10_000
FRAMES = """new Promise((done) => {
    const times = [], end = performance.now() + SECONDS * 1000;
    let before = performance.now();
    const look = (now) => {
        times.push(now - before);
        before = now;
        if (now < end) requestAnimationFrame(look); else done(times.slice(1));
    };
    requestAnimationFrame(look);
})"""

SERVER = """
import sys, time
import uvicorn
from marshal_py.admin.connection import Connection
from marshal_py.dashboard.app import create_app
from marshal_py.dashboard.log_follower import LogFollower
from marshal_py.dashboard.topic_ends import TopicEnds
from tests.benchmarks._crowd import end_of

servers, topic, partitions = sys.argv[1], sys.argv[2], int(sys.argv[3])

class Ends(TopicEnds):
    def ask(self, topics):
        now = time.time()
        return {t: {p: end_of(t, p, now) for p in range(partitions)} for t in topics}

connection = Connection.of_servers(servers, topic)
follower = LogFollower(connection, ends=Ends(connection), history_s=0)
follower.start()

class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print(self.servers[0].sockets[0].getsockname()[1], flush=True)

Server(uvicorn.Config(create_app(follower), port=0, log_level="warning")).run()
"""


def measure(options: Options) -> list[Figure]:
    groups, partitions, seconds = (5, 500, 6) if options.quick else (50, 5_000, 20)
    with EmbeddedKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        topic = new_topic(kafka, COORDINATORS)
        crowd = subprocess.Popen(
            [
                sys.executable, "-m", "tests.benchmarks._crowd", kafka.bootstrap_servers, topic,
                "--coordinators", str(COORDINATORS), "--groups", str(groups),
                "--partitions", str(partitions), "--trouble-every", "5",
                "--interval-ms", str(INTERVAL_MS),
            ],
            stdout=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert crowd.stdout is not None
            crowd.stdout.readline()
            connection = ["-b", kafka.bootstrap_servers, "--topic", topic]
            subprocess.run(
                [sys.executable, "-m", "marshal_py.cli", "snapshot", *connection],
                check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            started = time.perf_counter()
            arguments = [kafka.bootstrap_servers, topic, str(partitions)]
            server = subprocess.Popen(
                [sys.executable, "-c", SERVER, *arguments], stdout=subprocess.PIPE, text=True
            )
            try:
                assert server.stdout is not None
                url = f"http://127.0.0.1:{int(server.stdout.readline())}/"
                return _look(url, server.pid, Path(folder), groups * partitions, seconds, started)
            finally:
                server.kill()
                server.wait()
        finally:
            crowd.kill()
            crowd.wait()


def _look(
    url: str, pid: int, folder: Path, cells: int, seconds: int, started: float
) -> list[Figure]:
    with chromium(folder / "profile") as page:
        page.emulate(scheme="dark")
        page.call("Network.enable")
        page.goto(url)
        page.until("window.marshal?.live.head.phase === 'live'", 220)
        page.until("document.querySelectorAll('.card').length > 0")
        until_shown = time.perf_counter() - started
        say(f"{cells:,} claims shown {until_shown:.1f} s after the start")
        page.evaluate(COUNT)
        cpu, began = _cpu_s(pid), time.perf_counter()
        page.evaluate("window.received = 0")
        frames = page.evaluate(FRAMES.replace("SECONDS", str(seconds)))
        took = time.perf_counter() - began
        cpu = (_cpu_s(pid) - cpu) / took * 100
        received = page.evaluate("window.received") / took
        stale, held = page.evaluate(
            "[...marshal.live.rows.values()].reduce(([s, h], row) => [s + row.count()[3], "
            "h + row.count()[1] + row.count()[2] + row.count()[3]], [0, 0])"
        )
        say(f"{held:,} held, {stale:,} stale; {len(frames)} frames in {took:.0f} s")
        draw = page.evaluate(DRAW)
        memory = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        _photograph(page)
    return [
        Figure("server CPU", cpu, "% of a core", target="< 60 %", met=cpu < 60),
        Figure("stream to one page", received / 1_000, "KB/s"),
        Figure("server memory", memory / 1e6, "MB"),
        Figure("start until shown", until_shown, "s"),
        Figure(
            "frame, median",
            percentile(frames, 50),
            "ms",
            target="< 20",
            met=percentile(frames, 50) < 20,
        ),
        Figure(
            "frame, p95",
            percentile(frames, 95),
            "ms",
            target="< 34",
            met=percentile(frames, 95) < 34,
        ),
        Figure("frame, p99", percentile(frames, 99), "ms"),
        Figure("drawing all cards in sight", draw, "ms", target="< 16", met=draw < 16),
    ]


def _photograph(page: Page) -> None:
    """What it looks like, for people to look at."""
    folder = Path(tempfile.gettempdir())
    for name, scheme, prepare in (
        ("overview-dark", "dark", "marshal.context.setMode('live')"),
        ("overview-light", "light", "marshal.context.setMode('holder')"),
        ("group-dark", "dark", "location.hash = '#/g/billing', marshal.context.setMode('live')"),
    ):
        page.emulate(scheme=scheme)
        page.evaluate(prepare)
        if name.startswith("group"):
            page.until("marshal.view().lanes?.data")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done, 300)))")
        page.screenshot(folder / f"dashboard-{name}.png")
    say(f"screenshots: {folder}/dashboard-*.png")


def _cpu_s(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


COUNT = """(() => {
    const change = marshal.live.change.bind(marshal.live);
    window.received = 0;
    marshal.live.change = (found) => {
        window.received += JSON.stringify(found).length;
        change(found);
    };
})()"""

DRAW = """(() => {
    const began = performance.now();
    for (let i = 0; i < 10; i++) marshal.view().draw(true);
    return (performance.now() - began) / 10;
})()"""


if __name__ == "__main__":
    run(measure, __doc__)
