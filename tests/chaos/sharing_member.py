"""One member of `tests.chaos.sharing`: `python -m tests.chaos.sharing_member HISTORY SETTINGS`."""

from __future__ import annotations

import json
import logging
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from marshal_py import BrokerUnavailable, Claim, Consumer, NotHeld
from tests.chaos.recorder import Recorder, now_ns


def main() -> None:
    """Consume until SIGTERM, one by one or in batches; write down each message before its work."""
    path, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    recorder, stopped = Recorder(path), threading.Event()
    dice = random.Random(f"{settings['seed']} {settings['client_id']} {now_ns()}")
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    mode = settings["mode"]
    consumer: Consumer[Any] = Consumer(
        settings["servers"],
        group_id="g",
        client_id=settings["client_id"],
        topics="work",
        topic="__marshal",
        interval_ms=1_000,
        sharing=settings["sharing"],
        slots=8,
        mode=mode,
        batch_size=10,
        close_on_sigterm=False,
    )

    def take(claim: Claim, messages: list[Any], asked: int) -> None:
        """At least once, this is told under the lease; it may be over if the process was stopped
        since, and then what is known is that the consumer looked after it was asked."""
        epoch, before = claim.epoch, now_ns()
        held = claim.remaining_ms > 0 and claim.epoch == epoch
        after = now_ns()
        if not held:
            before, after = asked, before
        for message in messages:
            recorder.write(
                "deliver", before, after, claim.topic, claim.partition, epoch, message.offset()
            )
            if dice.random() < 0.02:
                time.sleep(dice.choice((0.05, 0.3)))
            time.sleep(dice.choice((0, 0.005, 0.02)))
            recorder.write("done", epoch, message.offset())

    while not stopped.is_set():
        try:
            consumer.start()
            break
        except BrokerUnavailable:
            stopped.wait(0.5)
    one_by_one = dice.random() < 0.5
    asked = now_ns()
    while not stopped.is_set():
        if one_by_one:
            for message in consumer.messages(idle_timeout_s=0.5):
                try:
                    take(consumer.claim_of(message), [message], asked)
                except NotHeld:  # it was stopped since, and has heard that another has it
                    recorder.write("overtaken", message.offset())
                asked = now_ns()
                if stopped.is_set():
                    break
        else:
            for batch in consumer.batches(idle_timeout_s=0.5):
                take(batch.claim, batch, asked)
                asked = now_ns()
                if stopped.is_set():
                    break
    consumer.close(timeout_s=10)


if __name__ == "__main__":
    main()
