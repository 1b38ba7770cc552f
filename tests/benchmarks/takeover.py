"""How long a cell has no holder: after a release, and after a SIGKILL of its holder."""

from __future__ import annotations

import subprocess
import sys
import time

from marshal_py import Claim, Marshal
from marshal_py.embedded.kafka import EmbeddedKafka
from marshal_py.protocol.events import Beat, Claimed
from tests.benchmarks._servers import new_topic
from tests.benchmarks.harness import Figure, Options, median, percentile, run, say

CHILD = """
import time
from marshal_py import Marshal
settings = dict(group_id="g", client_id="victim-{n}", topic={topic!r}, interval_ms={interval_ms})
with Marshal({servers!r}, **settings) as m:
    m.claim("t-{interval_ms}", {n})
    print("held", flush=True)
    time.sleep(600)
"""


def handover_ms(kafka: EmbeddedKafka, topic: str, count: int) -> list[float]:
    """From the call of release() in one client to the claim held in another."""
    times = []
    with (
        Marshal(kafka.bootstrap_servers, group_id="g", client_id="a", topic=topic) as a,
        Marshal(kafka.bootstrap_servers, group_id="g", client_id="b", topic=topic) as b,
    ):
        holder = a.claim("h", 0)
        for n in range(count):
            successor = (b if n % 2 == 0 else a).want("h", 0)
            while not successor._core.decided:  # then it knows that it has to wait
                time.sleep(0.000_5)
            started = time.perf_counter()
            holder.release(wait=False)
            successor.wait_held(10)
            times.append((time.perf_counter() - started) * 1_000)
            successor.commit(n, wait=True)
            holder = successor
    return times


def takeover_s(
    kafka: EmbeddedKafka, topic: str, standby: Marshal, interval_ms: int, n: int
) -> tuple[float, float]:
    """Return seconds from the victim's last record, and from the SIGKILL, to the new holder."""
    code = CHILD.format(servers=kafka.bootstrap_servers, topic=topic, interval_ms=interval_ms, n=n)
    victim = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "held\n"
    claim: Claim = standby.want(f"t-{interval_ms}", n)
    time.sleep(interval_ms / 1000 * (0.5 + n * 0.37 % 1))  # another phase of its heartbeat each
    victim.kill()
    killed = time.perf_counter()
    victim.wait()
    if not claim.wait_held(60):
        raise RuntimeError("nobody took over")
    taken = time.perf_counter()
    # Both are append times of one broker: of the claim, and of the last record before it.
    with standby.world() as world:
        coordinator = claim._core.holding.coordinator
        stamped = standby._driver.observers[coordinator].stamped
        claimed_at = claim.epoch - world.states[coordinator].base
        last = max(offset for offset in _heard[f"victim-{n}"] if offset < claimed_at)
        append_ms, last_ms = stamped.at(claimed_at), stamped.at(last)
    claim.release()
    assert append_ms is not None
    assert last_ms is not None
    return (append_ms - last_ms) / 1_000, taken - killed


_heard: dict[str, list[int]] = {}
"""client_id → the offsets of what renewed its claims."""


def _note(_: int, events: list[object]) -> None:
    for event in events:
        if isinstance(event, Claimed | Beat):
            _heard.setdefault(event.client_id, []).append(event.offset)


def measure(options: Options) -> list[Figure]:
    figures = []
    with EmbeddedKafka() as kafka:
        topic = new_topic(kafka)
        say("hand-over on release")
        medians = [
            percentile(handover_ms(kafka, topic, 20 if options.quick else 200), 50)
            for _ in range(options.repeats)
        ]
        figures.append(
            Figure(
                "hand-over on release, p50",
                median(medians),
                "ms",
                None,
                "≤ 20 ms",
                median(medians) <= 20,
            )
        )
        for interval_ms in (500,) if options.quick else (500, 5_000):
            with Marshal(
                kafka.bootstrap_servers,
                group_id="g",
                client_id=f"standby-{interval_ms}",
                topic=topic,
                interval_ms=interval_ms,
            ) as standby:
                standby.listen(_note)  # type: ignore[arg-type]
                silences, gaps = [], []
                for n in range(options.repeats):
                    silence, gap = takeover_s(kafka, topic, standby, interval_ms, n)
                    silences.append(silence / interval_ms * 1_000)
                    gaps.append(gap / interval_ms * 1_000)
                    say(f"interval {interval_ms} ms: taken over after {silences[-1]:.2f}")
            worst = max(silences)
            figures += [
                Figure(
                    f"takeover at {interval_ms} ms, from the last heartbeat",
                    median(silences),
                    "intervals",
                    None,
                    "2 to 2.5",
                    min(silences) >= 2 and median(silences) <= 2.5,
                ),
                Figure(
                    f"takeover at {interval_ms} ms, from the last heartbeat, worst",
                    worst,
                    "intervals",
                    None,
                    "2 to 2.5",
                    2 <= worst <= 2.5,
                ),
                Figure(
                    f"takeover at {interval_ms} ms, from the SIGKILL",
                    median(gaps),
                    "intervals",
                    None,
                    "≤ 2.5",
                    median(gaps) <= 2.5,
                ),
            ]
    return figures


if __name__ == "__main__":
    run(measure, __doc__)
