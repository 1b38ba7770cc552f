"""What is done to the servers and processes. Each fault breaks something and heals it again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal

from confluent_kafka import Producer

from marshal_py.embedded.errors import NotRunning
from marshal_py.errors import GroupInUse
from marshal_py.protocol.messages import Heartbeat, ReleaseGroup, ResumeGroup, encode
from marshal_py.protocol.world import coordinating_partition
from tests.chaos import unsynced
from tests.chaos.config import BETWEEN, NETWORKS, QUORUM, group_of
from tests.chaos.receiver import Mood
from tests.chaos.recorder import now_ns
from tests.support.messages import offset_of

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

__all__ = ["CLOCK_FAULTS", "DISK_FAULTS", "FAULTS", "MARIA_FAULTS", "TRACKS", "rest_s"]

Fault = Callable[["Stage", random.Random], str]
"""Breaks and heals; returns in words to whom it happened."""


_OFF_S: Final = 1_800.0
"""So far off wall clocks get: brokers refuse records of more than an hour from now."""

_TRIES: Final = 3


def _victims(stage: Stage) -> list[str]:
    return [name for name in stage.names if name not in stage.config.writer_names]


def kill(stage: Stage, dice: random.Random) -> str:
    """SIGKILL a client; it comes back, at once or after its claims were taken over."""
    return kill_one(stage, dice.choice(_victims(stage)), dice)


def kill_one(stage: Stage, name: str, dice: random.Random) -> str:
    """SIGKILL this client; it comes back."""
    stage.kill(name)
    stage.wait(dice.choice((0.0, 0.3, 2.0, 4.0)))
    stage.start(name)
    return name


def kill_holders(stage: Stage, dice: random.Random) -> str:
    """SIGKILL a process that does nothing but hold cells, until others have taken them over."""
    name = dice.choice(stage.config.claimer_names)
    stage.kill(name)
    stage.wait(stage.interval_s * 4)
    stage.start(name)
    return name


def stop(stage: Stage, dice: random.Random) -> str:
    """SIGSTOP one or two clients until their leases are long over; then they wake up."""
    names = dice.sample(_victims(stage), dice.choice((1, 2)))
    for name in names:
        stage.pause(name)
    stage.wait(stage.interval_s * dice.uniform(2.2, 4.5))
    for name in names:
        stage.resume(name)
    return ", ".join(names)


def stop_holders(stage: Stage, dice: random.Random) -> str:
    """SIGSTOP a process that holds cells, in the middle of its acting, until all are taken over."""
    name = dice.choice(stage.config.claimer_names)
    stage.pause(name)
    stage.wait(stage.interval_s * dice.uniform(3.5, 5.0))
    stage.resume(name)
    return name


def hiccup(stage: Stage, dice: random.Random) -> str:
    """SIGSTOP a client for about as long as a lease, several times."""
    name = dice.choice(_victims(stage))
    for _ in range(3):
        stage.pause(name)
        stage.wait(stage.interval_s * dice.uniform(0.3, 2.1))
        stage.resume(name)
        stage.wait(0.05)
    return name


def duplicate_client(stage: Stage, dice: random.Random) -> str:
    """Another process comes up under the name of one that sleeps; then that one wakes up."""
    name = dice.choice(stage.config.claimer_names)
    stage.pause(name)
    stage.start(f"{name}~")
    stage.wait(stage.interval_s * dice.uniform(3.0, 4.0))
    stage.resume(name)
    stage.wait(stage.interval_s * dice.uniform(1.0, 2.0))
    for each in (f"{name}~", name):
        stage.kill(each)
    stage.start(name)
    return name


def level_change(stage: Stage, dice: random.Random) -> str:
    """Members of the older version are stopped, the group goes on by the level of the next one.

    An older one that comes then has to take no part; then the group goes back. Nobody makes the log
    anew meanwhile, in which the group would begin at the lowest level.
    """
    refusal = ""
    for _ in range(3):
        with stage.links_lock:
            guest, refusal = _by_the_next_level(stage, dice)
        if not refusal:
            return f"to 2 and back; {guest} was refused"
        stage.await_ready(stage.config.older_names)
        stage.wait(4 * stage.interval_s)
    return refusal


def _by_the_next_level(stage: Stage, dice: random.Random) -> tuple[str, str]:
    """Change the level, and back; say who came meanwhile, and why it could not be changed."""
    older = stage.config.older_names
    stage.finish(older, 60)
    for name in older:
        stage.kill(name)  # that did not end in time, while no broker answered
    guest = dice.choice(older)
    try:
        stage.set_level(2)
        began = now_ns()
        stage.start(guest)
        if not stage.refused(guest, began, 120):
            raise RuntimeError(f"{guest} was not refused\n{stage.said(guest)}")
        stage.record.write("level", began, now_ns(), older)
        stage.set_level(1)
    except GroupInUse as error:  # the goodbye of one of them got lost, and they come again first
        return guest, str(error)
    finally:
        for name in older:
            stage.kill(name)
            stage.start(name)
    return guest, ""


def clock_jump(stage: Stage, dice: random.Random) -> str:
    """The wall clocks of one to three clients jump, and stay so: nobody may count on them."""
    names = dice.sample(_victims(stage), dice.choice((1, 2, 3)))
    return ", ".join(told for name in names if (told := _jump(stage, name, dice)))


def _jump(stage: Stage, name: str, dice: random.Random) -> str:
    assert stage.clocks is not None
    off_s = stage.clocks.off_s(name)
    jump_s = dice.choice((-600.0, -30.0, -2.0, 2.0, 30.0, 600.0))
    if abs(off_s + jump_s) >= _OFF_S:
        return ""
    stage.clocks.set(name, off_s + jump_s)
    return f"{name} by {jump_s:+.1f} s"


def machine_moves(stage: Stage, dice: random.Random) -> str:
    """A client's machine moves to another host: it stands still, and has that one's time then."""
    name = dice.choice(_victims(stage))
    stage.pause(name)
    _jump(stage, name, dice)
    stage.wait(stage.interval_s * dice.uniform(0.5, 4.0))
    stage.resume(name)
    return name


def group_pause(stage: Stage, dice: random.Random) -> str:
    """An operator pauses a group, and lets it go on."""
    group = dice.choice(("claimer", "alo", "amo", "run"))
    producer = Producer({"bootstrap.servers": stage.config.direct, "log_level": 0})
    header: tuple[Literal[2], str, str, str] = (2, "operator", f"operator.{now_ns()}", group)
    where = coordinating_partition(group, stage.config.coordination_partitions)

    def write(record: ReleaseGroup | ResumeGroup) -> int:
        written: list[int] = []
        producer.produce(
            stage.config.log_of(group),
            encode(record),
            partition=where,
            on_delivery=lambda error, message: written.append(-1 if error else offset_of(message)),
        )
        if producer.flush(240) or written[0] < 0:
            raise RuntimeError("the operator could not write")
        stage.wait(stage.interval_s * dice.uniform(1.0, 3.0))
        return written[0]

    write(ResumeGroup(*header, 2, write(ReleaseGroup(*header, 1, 0))))
    return group


def broker_kill(stage: Stage, dice: random.Random) -> str:
    """SIGKILL a broker and bring it back."""
    broker = dice.randrange(3)
    stage.kafka.kill(broker)
    stage.wait(dice.uniform(0.5, 4.0))
    stage.up(broker)
    return f"broker {broker}"


def broker_pause(stage: Stage, dice: random.Random) -> str:
    """SIGSTOP a broker: its connections stay open, and nothing answers."""
    broker = dice.randrange(3)
    stage.kafka.pause(broker)
    stage.wait(dice.uniform(1.0, 6.0))
    stage.kafka.resume(broker)
    return f"broker {broker}"


def power_loss(stage: Stage, dice: random.Random) -> str:
    """A broker dies, and the end of what it had not made durable is gone when it comes back.

    All replicas are in sync before, and others lead before it comes back, as after a real one.
    """
    broker = dice.randrange(3)
    stage.replicas({1, 2, 3})
    stage.kafka.kill(broker)
    stage.replicas({1, 2, 3} - {broker + 1})
    cut = unsynced.cut(stage.data_of(broker), dice)
    stage.up(broker)
    return f"broker {broker}, {cut} partitions"


def topic_made_anew(stage: Stage, dice: random.Random) -> str:
    """The claimers' log is deleted and made anew, and grows: not so far as it was, or beyond."""
    admin = stage.kafka.admin()
    name = stage.config.claims_log
    with stage.links_lock:
        stage.cut_off()
        try:
            stage.keep_claims("topic_made_anew")
            old = stage.lost[-1].log
            doomed = [name, f"{name}.snapshots"][: dice.randint(1, 2)]
            for future in admin.delete_topics(doomed).values():
                future.result(60)
            stage.make_claims_log()
            part = dice.choice((0.0, 0.5, 1.0, 1.5))
            _grow(stage, {p: int(len(records) * part) for p, records in old.items()})
        finally:
            stage.let_in()
    return f"{len(doomed)} topics, then {part:.0%} as long as before"


def unclean_election(stage: Stage, dice: random.Random) -> str:
    """A broker alone has the end of the claimers' log, and dies; another leads without that end.

    It was acknowledged: for this moment one replica is enough, and one that is behind may lead.
    Where nobody wrote anything meanwhile, it is done again.
    """
    for _ in range(_TRIES):
        broker, lost = _lose_the_end(stage, dice)
        if lost:
            return f"broker {broker}, {lost} records lost"
    raise RuntimeError("no record was lost")


def _lose_the_end(stage: Stage, dice: random.Random) -> tuple[int, int]:
    """Return the broker that died, and how many records are gone with it."""
    with stage.links_lock:
        stage.replicas({1, 2, 3})
        stage.alter_claims_log({"min.insync.replicas": "1"})
        node = _leave_alone(stage)
        try:
            stage.wait(stage.interval_s * dice.uniform(1.0, 3.0))
            stage.cut_off()
            stage.keep_claims("unclean_election")
            # Not before: one whose controller has not heard of it for a while would lose them, too.
            stage.alter_claims_log({"unclean.leader.election.enable": "true"})
            stage.kafka.kill(node - 1)
            stage.await_leaders(node)
        finally:
            stage.network.set(f"{BETWEEN}-{node - 1}", "open")
            stage.up(node - 1)
            stage.alter_claims_log(
                {"min.insync.replicas": "2", "unclean.leader.election.enable": "false"}
            )
            stage.let_in()
        lost = stage.lost_of_claims()
        if not lost:
            stage.lost.pop()  # the log that was kept goes on
    return node - 1, lost


def _leave_alone(stage: Stage) -> int:
    """Cut who leads the claimers' log off from the others, and wait until none is in sync with it.

    One that was about to hand over when it was cut off (brokers had just been restarted) leads no
    more: then the next one. Returns which it is.
    """
    for _ in range(3):
        node = stage.leader_of_claims()
        stage.network.set(f"{BETWEEN}-{node - 1}", "cut")
        if stage.is_left_alone(node):
            return node
        stage.network.set(f"{BETWEEN}-{node - 1}", "open")
        stage.replicas({1, 2, 3})
    raise TimeoutError("no broker was left alone")


def _grow(stage: Stage, counts: dict[int, int]) -> None:
    """Append so many records that mean nothing to each partition of the claimers' log."""
    producer = Producer({"bootstrap.servers": stage.config.direct, "log_level": 0})
    for p, count in counts.items():
        group = group_of(p, stage.config.coordination_partitions)
        for seq in range(count):
            record = Heartbeat(2, "filler", "filler.2", group, seq, stage.config.interval_ms)
            producer.produce(stage.config.claims_log, encode(record), partition=p)
    if producer.flush(60):
        raise RuntimeError("the log could not be filled")


def rolling_restart(stage: Stage, dice: random.Random) -> str:
    """Stop and start the brokers one after the other, as an upgrade does."""
    order = dice.sample(range(3), 3)
    for broker in order:
        stage.kafka.stop(broker)
        stage.up(broker)
    return f"brokers {order}"


def all_brokers_kill(stage: Stage, dice: random.Random) -> str:
    """SIGKILL all brokers at once, and start them together."""
    for broker in range(3):
        stage.kafka.kill(broker)
    stage.wait(dice.uniform(0.0, 3.0))
    stage.up()
    return "all brokers"


_LEADER: Final = re.compile(
    r"RaftManager id=(\d+)\] Completed transition to Leader\(.*?epoch=(\d+)"
)


def controller_kill(stage: Stage, dice: random.Random) -> str:
    """SIGKILL the active controller, as its log names it."""
    terms = {}
    for broker in range(3):
        for node, term in _LEADER.findall(stage.kafka.log_path(broker).read_text(errors="replace")):
            terms[int(term)] = int(node) - 1
    if not terms:
        raise RuntimeError("no broker's log names the active controller")
    broker = terms[max(terms)]
    stage.kafka.kill(broker)
    stage.wait(dice.uniform(1.0, 3.0))
    stage.up(broker)
    return f"broker {broker}, term {max(terms)}"


def leader_moves(stage: Stage, dice: random.Random) -> str:
    """Stop a broker in good order, so that others lead; then its partitions go back to it."""
    broker = dice.randrange(3)
    stage.kafka.stop(broker)
    stage.wait(0.5)
    stage.up(broker)
    stage.elect_preferred()
    return f"broker {broker}"


def _links(stage: Stage, dice: random.Random) -> list[str]:
    """One link, or all of a network, or all to a broker."""
    network, broker = dice.choice(NETWORKS), dice.randrange(3)
    shape = dice.choice(("one", "network", "broker"))
    names = [name for name in stage.network.links if name.startswith(NETWORKS)]
    if shape == "one":
        return [f"{network}-{broker}"]
    if shape == "network":
        return [name for name in names if name.startswith(f"{network}-")]
    return [name for name in names if name.endswith(f"-{broker}")]


def link_cut(stage: Stage, dice: random.Random) -> str:
    """Reset connections and refuse new ones."""
    return _break(stage, dice, "cut")


def link_hole(stage: Stage, dice: random.Random) -> str:
    """Nothing passes, and nobody is told."""
    return _break(stage, dice, "hole")


def link_one_way(stage: Stage, dice: random.Random) -> str:
    """Nothing passes in one direction: records arrive, and no acknowledgement, or the reverse."""
    return _break(stage, dice, dice.choice(("hole_up", "hole_down")))


def _break(stage: Stage, dice: random.Random, state: str) -> str:
    names = _links(stage, dice)
    for name in names:
        stage.network.set(name, state)  # type: ignore[arg-type]
    stage.wait(dice.uniform(0.5, 6.0))
    for name in names:
        stage.network.set(name, "open")
    return f"{state}: {', '.join(names)}"


def link_slow(stage: Stage, dice: random.Random) -> str:
    """Every piece takes long, so that heartbeats come in late."""
    names = _links(stage, dice)
    for name in names:
        stage.network.slow(name, dice.uniform(0.05, 0.7))
    stage.wait(dice.uniform(2.0, 6.0))
    for name in names:
        stage.network.slow(name, 0.0)
    return ", ".join(names)


def link_lossy(stage: Stage, dice: random.Random) -> str:
    """A tenth to a third of the packets get lost, and those that come take a while."""
    names, loss = _links(stage, dice), dice.uniform(0.1, 0.35)
    for name in names:
        stage.network.slow(name, dice.uniform(0.0, 0.05))
        stage.network.lose(name, loss)
    stage.wait(dice.uniform(3.0, 8.0))
    for name in names:
        stage.network.slow(name, 0.0)
        stage.network.lose(name, 0.0)
    return f"{loss:.0%}: {', '.join(names)}"


def _apart(stage: Stage, names: list[str], span_s: float) -> None:
    for name in names:
        stage.network.set(name, "cut")
    stage.wait(span_s)
    for name in names:
        stage.network.set(name, "open")


def broker_apart(stage: Stage, dice: random.Random) -> str:
    """No broker reaches this one, which reaches all: neither its data nor its vote."""
    broker = dice.randrange(3)
    names = [f"{QUORUM}-{other}-{broker}" for other in range(3) if other != broker]
    _apart(stage, [f"{BETWEEN}-{broker}", *names], dice.uniform(1.0, 8.0))
    return f"broker {broker}"


def controllers_apart(stage: Stage, dice: random.Random) -> str:
    """Two controllers cannot talk to each other, or one cannot talk to any."""
    one, other = dice.sample(range(3), 2)
    names = [f"{QUORUM}-{one}-{other}", f"{QUORUM}-{other}-{one}"]
    if dice.random() < 0.5:
        names = [name for name in stage.network.links if name.startswith(f"{QUORUM}-{one}-")]
        names += [f"{QUORUM}-{b}-{one}" for b in range(3) if b != one]
    _apart(stage, names, dice.uniform(1.0, 8.0))
    return ", ".join(names)


def broker_disk_full(stage: Stage, dice: random.Random) -> str:
    """No room is left on a broker's disk. It gives up, or not; with room again it comes back."""
    disk = stage.disks["broker"]
    taken = disk.fill()
    stage.wait(dice.uniform(2.0, 6.0))
    died = not stage.kafka.running(2)
    disk.empty()
    if not died:
        try:
            stage.kafka.kill(2)
        except NotRunning:  # it took its time to give up
            died = True
    stage.up(2)
    return f"broker 2, {taken >> 20} MB, {'ended' if died else 'lived on'}"


def database_disk_full(stage: Stage, dice: random.Random) -> str:
    """No room is left on PostgreSQL's disk."""
    disk = stage.disks["postgres"]
    taken = disk.fill()
    stage.wait(dice.uniform(1.0, 4.0))
    disk.empty()
    died = not stage.postgres.running
    if died:
        stage.postgres.start()
    return f"PostgreSQL, {taken >> 20} MB, {'ended' if died else 'lived on'}"


def database_kill(stage: Stage, dice: random.Random) -> str:
    """SIGKILL PostgreSQL, and start it again: it recovers from its log."""
    stage.postgres.kill()
    stage.wait(dice.uniform(0.0, 2.0))
    stage.postgres.start()
    return "PostgreSQL"


def database_restart(stage: Stage, dice: random.Random) -> str:
    """Restart PostgreSQL in good order."""
    stage.postgres.stop()
    stage.postgres.start()
    return "PostgreSQL"


def database_pause(stage: Stage, dice: random.Random) -> str:
    """SIGSTOP PostgreSQL."""
    stage.postgres.pause()
    stage.wait(dice.uniform(0.5, 4.0))
    stage.postgres.resume()
    return "PostgreSQL"


def database_disconnect(stage: Stage, dice: random.Random) -> str:
    """End all sessions, in the middle of transactions and commits."""
    ended = 0
    for _ in range(dice.randint(1, 5)):
        ended += stage.disconnect()
        stage.wait(dice.uniform(0.0, 0.2))
    return f"{ended} sessions"


def database_link_cut(stage: Stage, dice: random.Random) -> str:
    """Cut the way to PostgreSQL: whether a commit came through is not known."""
    return _cut_or_unanswered(stage, dice, "postgres")


def maria_kill(stage: Stage, dice: random.Random) -> str:
    """SIGKILL MariaDB, and start it again: it recovers from its log."""
    assert stage.maria is not None
    stage.maria.kill()
    stage.wait(dice.uniform(0.0, 2.0))
    stage.maria.start()
    return "MariaDB"


def maria_pause(stage: Stage, dice: random.Random) -> str:
    """SIGSTOP MariaDB."""
    assert stage.maria is not None
    stage.maria.pause()
    stage.wait(dice.uniform(0.5, 4.0))
    stage.maria.resume()
    return "MariaDB"


def maria_link_cut(stage: Stage, dice: random.Random) -> str:
    """Cut the way to MariaDB: whether a commit came through is not known."""
    return _cut_or_unanswered(stage, dice, "maria")


def destination_link_cut(stage: Stage, dice: random.Random) -> str:
    """Cut the way to the relay's destination, or the way back: whether it has a row is not known.

    What is on its way when nobody waits for it any more does not arrive later: nothing could tell
    such a request from one that is new.
    """
    return _cut_or_unanswered(stage, dice, "destination")


def _cut_or_unanswered(stage: Stage, dice: random.Random, link: str) -> str:
    how: Literal["cut", "hole_down"] = dice.choice(("cut", "hole_down"))
    stage.network.set(link, how)
    stage.wait(dice.uniform(0.2, 2.0))
    stage.network.set(link, "cut")
    stage.network.set(link, "open")
    return how


def destination_unwell(stage: Stage, dice: random.Random) -> str:
    """The destination says that it is down, or fails with what it has taken, or says nothing."""
    mood: Mood = dice.choice(("down", "broken", "silent"))
    stage.receiver.mood = mood
    stage.wait(dice.uniform(1.0, 4.0))
    stage.receiver.mood = "well"
    return mood


TRACKS: Final[dict[str, list[Fault]]] = {
    "processes": [
        kill,
        kill_holders,
        stop,
        stop_holders,
        hiccup,
        duplicate_client,
        group_pause,
        level_change,
        clock_jump,
        machine_moves,
    ],
    "kafka": [
        broker_kill,
        broker_pause,
        power_loss,
        topic_made_anew,
        unclean_election,
        rolling_restart,
        all_brokers_kill,
        controller_kill,
        leader_moves,
        broker_apart,
        controllers_apart,
        broker_disk_full,
    ],
    "network": [link_cut, link_hole, link_one_way, link_slow, link_lossy],
    "database": [
        database_kill,
        database_restart,
        database_pause,
        database_disconnect,
        database_link_cut,
        database_disk_full,
    ],
    "relaying": [
        maria_kill,
        maria_pause,
        maria_link_cut,
        destination_link_cut,
        destination_unwell,
    ],
}
"""Faults of one track happen one after the other; tracks run side by side."""

DISK_FAULTS: Final = ("broker_disk_full", "database_disk_full")
"""Made only where this process may mount."""

MARIA_FAULTS: Final = ("maria_kill", "maria_pause", "maria_link_cut")
"""Made only where MariaDB is installed."""

CLOCK_FAULTS: Final = ("clock_jump", "machine_moves")
"""Made only where there is a C compiler."""


FAULTS: Final = sorted({fault.__name__ for faults in TRACKS.values() for fault in faults})


def rest_s(track: str, dice: random.Random) -> float:
    """How long a track rests after a fault, for work to be done in between."""
    return dice.uniform(0.2, 1.5) if track == "processes" else dice.uniform(0.5, 3.0)
