"""`peer consume`: the consumer of marshal_py, in events."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time

from marshal_py import ClaimTimeout
from marshal_py.consumer.consumer import Consumer
from tests.interop.flags import Flags
from tests.interop.peer import hb_s, say
from tests.support.messages import partition_of

FLAGS: dict[str, str | bool] = {
    "brokers": "",
    "client": "",
    "group": "",
    "topics": "",
    "greedy": False,
    "entire": False,
    "max-claims": "0",
    "quiet": False,
    "fast-reclaim": True,
    "release-if-behind": True,  # Go's own idea of shedding load; ours never releases because of it
    "commit": "after",
    "flush": "0",
    "count": "0",
    "duration": "0",
    "term": "release",
    "log": "__marshal",
}


COMMITS = ("after", "before", "none")
TERMS = ("release", "keep", "exit")


class Watch(threading.Thread):
    """Tells of claims as they come and go, with the time at which that was seen, and when asked."""

    def __init__(self, consumer: Consumer, entire: bool) -> None:
        super().__init__(daemon=True)
        self._consumer = consumer
        self._entire = entire
        self._known: set[tuple[str, int]] = set()
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self.asked = False
        """Set by a signal handler, which must neither print nor take a lock itself."""

    def look(self) -> None:
        """Say what has changed since the last look."""
        with self._lock:
            held = {(claim.topic, claim.partition) for claim in self._consumer.claims()}
            for event, keys in (("claim", held - self._known), ("unclaim", self._known - held)):
                for topic, partition in sorted(keys):
                    say(event, topic=topic, partition=partition, t=time.time())
            if self._entire and held != self._known:
                say("topic_claims", topics=sorted({t for t, p in held if p == 0}))
            self._known = held

    def has_told(self, topic: str, partition: int) -> bool:
        """Whether the claim on this partition has been told."""
        return (topic, partition) in self._known

    def run(self) -> None:
        while not self._ending.wait(0.02):
            self.look()
            if self.asked:
                self.asked = False
                say("claims", claims=sorted(map(list, self._known)))

    def end(self) -> None:
        self._ending.set()
        self.join()
        self.look()


def consume(args: list[str]) -> None:
    flags = Flags(args, FLAGS)
    commit, term = flags.choice("commit", COMMITS), flags.choice("term", TERMS)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    consumer = Consumer(
        flags.text("brokers"),
        topics=flags.text("topics").split(","),
        group_id=flags.text("group"),
        client_id=flags.text("client"),
        topic=flags.text("log"),
        wire="text",
        interval_ms=hb_s() * 1000,
        resume=flags.flag("fast-reclaim"),
        greedy=flags.flag("greedy"),
        claim_entire_topic=flags.flag("entire"),
        max_claims=flags.number("max-claims") or None,
        auto_ack=False,
        keep_on_close=term == "keep",
    )
    watch = Watch(consumer, flags.flag("entire"))
    signal.signal(signal.SIGUSR1, lambda *_: setattr(watch, "asked", True))
    say("start")
    started_s = time.time()
    consumer.start()
    say("dialed")
    watch.start()
    flush_s, count = flags.seconds("flush"), flags.number("count")
    end_s = started_s + flags.seconds("duration") if flags.seconds("duration") else float("inf")
    seen, flushed_s, quiet = 0, time.time(), flags.flag("quiet")
    try:
        while not stop.is_set() and time.time() < end_s and not 0 < count <= seen:
            for message in consumer.messages(idle_timeout_s=0.1):
                if not watch.has_told(message.topic() or "", partition_of(message)):
                    watch.look()  # a message comes after its claim
                if commit == "before":
                    consumer.ack(message)
                if seen == 0:
                    say("first_message", since_start=time.time() - started_s)
                seen += 1
                if not quiet:
                    say(
                        "msg",
                        topic=message.topic(),
                        partition=message.partition(),
                        offset=message.offset(),
                        t=time.time(),
                    )
                if commit == "after":
                    consumer.ack(message)
                if stop.is_set() or time.time() >= end_s or seen == count:
                    break
                if flush_s and time.time() - flushed_s >= flush_s:
                    break
            if flush_s and time.time() - flushed_s >= flush_s:
                with contextlib.suppress(ClaimTimeout):  # an outage: the next heartbeat stores it
                    consumer.commit()
                flushed_s = time.time()
        say("stopping")
        if term == "exit":
            os._exit(0)
    finally:
        consumer.close()
        watch.end()
    say("stopped", messages=seen)
