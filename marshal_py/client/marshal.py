"""`Marshal`: the live client, as the user has it.

It joins two parts: `driver.Driver` has the thread, the log and the claimant,
`claims.ClaimRegistry` the claims. `leader_election` stands on both.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Self

from marshal_py.client.claim import Claim
from marshal_py.client.claims import ClaimRegistry
from marshal_py.client.driver import Driver, Listener
from marshal_py.client.forks import OfOneProcess
from marshal_py.client.leader_election import Leader, Leadership, LeaderWatch
from marshal_py.client.settings import (
    DEFAULT_INTERVAL_MS,
    DEFAULT_TOPIC,
    ClientSettings,
    check_bool,
    default_client_id,
    kafka_config,
    new_instance_id,
)
from marshal_py.client.structured_logs import Fields
from marshal_py.client.waiting import block
from marshal_py.errors import AccessDenied, MarshalError, SnapshotMismatch
from marshal_py.protocol.rationalizer import Cell
from marshal_py.protocol.wire import WireName
from marshal_py.protocol.world import Liveness, World

__all__ = ["Claim", "Marshal", "driver_of", "registry_of"]

logger = logging.getLogger("marshal_py")


class Marshal(OfOneProcess):
    """A client of the coordination topic: claims, leases, members, and the world as it is.

    ::

        with Marshal("localhost:9092", group_id="billing", client_id="billing-1") as m:
            claim = m.claim("orders", 3)
            while claim.held:
                ...

    - `config`: librdkafka settings (all are passed through: SASL, TLS, ...), or just the brokers.
    - `group_id`: who shares. Claims of different groups do not meet.
    - `client_id`: unique in its group, and best kept over restarts: a client that comes back under
      the same name resumes its claims without waiting. By default a fresh one.
    - `interval_ms`: the heartbeat interval, 20 or more; 5,000 by default (with wire="text" 60,000,
      and the same for all clients, in whole seconds). A dead holder is replaced after two.
    - `margin_ms`: what the lease keeps back for clocks whose rates differ; a tenth of the interval.
    - `create_topics`: make the topics with sound settings if they are missing.
    - `resume`, `cold_start_skew_ms`: see specs/PROTOCOL.md §5.8 and §5.3.
    - `member`, `member_metadata`: whether and with which bytes other members see this client.
    - `snapshot_every`: records of a coordination partition between two snapshots.
    - `trim_log`: delete the records that a snapshot of this client covers, once it has been read
      back; the client needs the right Delete on the topic. Without it `marshal topic trim` does.
    - `gather_ms`: how long brokers may gather records before they answer a fetch of the log, up to
      a tenth of the interval. Claims, hand-overs and what listeners hear come so much later; in a
      group of hundreds, 50 saves most of what it costs to read the others' heartbeats. 0, the
      default: each record comes at once.
    - `wire`: "msgpack" for version 2, or "text" to work beside Go Marshal on its topic. What
      version 1 cannot give raises `NotInVersion1`: see specs/INTEROP.md.
    - `close_on_sigterm`: on SIGTERM, if the program handles it nowhere else, raise SystemExit in
      the main thread, so that the `with` block ends and everything is released.

    Raises `ConfigurationError` before anything touches the network. `start`, or entering the `with`
    block, raises `TopicMissing`, `BrokerUnavailable` after `connect_timeout_ms`, and `LogHole`.
    Later outages raise nothing: leases lapse, and the client reconnects without end.

    For any thread; not for use after fork.
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str,
        *,
        group_id: str,
        client_id: str | None = None,
        interval_ms: int | None = None,
        margin_ms: int | None = None,
        topic: str = DEFAULT_TOPIC,
        snapshot_topic: str | None = None,
        create_topics: bool = False,
        resume: bool = True,
        cold_start_skew_ms: int | None = 1_000,
        member: bool = True,
        member_metadata: bytes = b"",
        connect_timeout_ms: int = 30_000,
        snapshot_every: int = 50_000,
        trim_log: bool = False,
        gather_ms: int = 0,
        close_on_sigterm: bool = True,
        wire: WireName = "msgpack",
    ) -> None:
        check_bool("create_topics", create_topics)
        check_bool("close_on_sigterm", close_on_sigterm)
        instance_id = new_instance_id()
        if wire == "text":
            instance_id = instance_id[:8]  # as Go has it
        if interval_ms is None:
            interval_ms = DEFAULT_INTERVAL_MS["text" if wire == "text" else "msgpack"]
        if margin_ms is None:
            margin_ms = max(1, interval_ms // 10) if isinstance(interval_ms, int) else 0
        self.settings = ClientSettings(
            kafka=kafka_config(config),
            group_id=group_id,
            client_id=default_client_id(instance_id) if client_id is None else client_id,
            instance_id=instance_id,
            interval_ms=interval_ms,
            margin_ms=margin_ms,
            topic=topic,
            snapshot_topic=f"{topic}.snapshots" if snapshot_topic is None else snapshot_topic,
            resume=resume,
            cold_start_skew_ms=cold_start_skew_ms,
            member=member,
            member_metadata=member_metadata,
            connect_timeout_ms=connect_timeout_ms,
            snapshot_every=snapshot_every,
            trim_log=trim_log,
            gather_ms=gather_ms,
            wire=wire,
        )
        log = Fields(
            logger,
            {
                "group_id": group_id,
                "client_id": self.settings.client_id,
                "instance_id": instance_id,
            },
        )
        self._driver = Driver(
            self.settings, log, create_topics=create_topics, close_on_sigterm=close_on_sigterm
        )
        """For the rest of this library; no part of the public interface."""
        self._registry = ClaimRegistry(self._driver)
        """For the rest of this library; no part of the public interface."""

    # Life

    @property
    def group_id(self) -> str:
        """The group of this client."""
        return self.settings.group_id

    @property
    def client_id(self) -> str:
        """The name of this client in its group."""
        return self.settings.client_id

    @property
    def instance_id(self) -> str:
        """What tells this start of the client from every other: random hex digits."""
        return self.settings.instance_id

    def start(self) -> Self:
        """Connect, replay the log and start the driver thread. Returns the client itself.

        Raises `Closed` if `close` is called meanwhile, from another thread.
        """
        self._driver.connect()
        self._driver.start()
        return self

    def close(self, timeout_s: float = 10.0, *, release: bool = True) -> None:
        """Release every claim, leave the group, and stop. Safe to call twice.

        Waits up to `timeout_s` for the releases to be in the log; what is not by then ends with its
        lease. With `release=False` the claims are kept: a last heartbeat stores their positions,
        and the next start under the same client_id resumes them, if it comes within two intervals.
        Stop acting on the claims before you call this.
        """
        self._driver.close(timeout_s, release=release)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Claims

    def claim(
        self,
        topic: str,
        partition: int,
        *,
        timeout_s: float | None = None,
        ephemeral: bool = False,
    ) -> Claim:
        """Claim (topic, partition) for this client and wait until it is held.

        Any names will do: a claim need not be about a Kafka topic that exists. A free cell takes
        one round trip; one whose holder died, two of the holder's intervals. Raises `ClaimTimeout`
        after `timeout_s` (None: wait for ever), `DuplicateClientId`, `InvalidArgument`, `Closed`.
        Claiming what this client has already returns the same claim, once it is held.

        With `ephemeral`, nothing is left of the cell once the claim is released: no position, no
        epoch to compare with. For locks that are used once, a job's for one, of which there would
        be ever more. Epochs grow all the same (§4.5).
        """
        return self.claim_many([(topic, partition)], timeout_s=timeout_s, ephemeral=ephemeral)[0]

    def claim_many(
        self,
        keys: Iterable[tuple[str, int]],
        *,
        timeout_s: float | None = None,
        ephemeral: bool = False,
    ) -> list[Claim]:
        """Claim several (topic, partition) at once; wait until all are held.

        Raises as `claim` does; those that this call has won are then released again.
        """
        return block(
            self._driver.lock, self._registry.claim_many(keys, timeout_s, ephemeral=ephemeral)
        )

    def try_claim(
        self, topic: str, partition: int, *, timeout_s: float = 10.0, ephemeral: bool = False
    ) -> Claim | None:
        """Claim (topic, partition) if that is possible now; None if a live client holds it.

        `ephemeral` as for `claim`.
        """
        return block(
            self._driver.lock,
            self._registry.try_claim(topic, partition, timeout_s, ephemeral=ephemeral),
        )

    def want(self, topic: str, partition: int, *, ephemeral: bool = False) -> Claim:
        """Ask for a claim without waiting: it is held some time later, see `Claim.held`.

        The client goes on trying until it wins, or `Claim.release` is called. `ephemeral` as for
        `claim`.
        """
        return self._registry.want(topic, partition, ephemeral=ephemeral)

    def claims(self) -> list[Claim]:
        """Return the claims that this client holds now."""
        return self._registry.held()

    def leader(self, name: str) -> Leadership:
        """Stand for leader of `name`; entering the `with` block waits until elected (§8)."""
        return Leadership(self._registry, name)

    def watch_leader(
        self,
        name: str,
        on_change: Callable[[Leader | None, Leader | None], None] | None = None,
    ) -> LeaderWatch:
        """Observe who leads `name`; `on_change(old, new)` hears of every change."""
        return LeaderWatch(self._driver, name, on_change)

    # The world

    @contextlib.contextmanager
    def world(self) -> Iterator[World]:
        """Look at the world as this client knows it, while it stands still.

        Heartbeats wait as long as the block lasts: copy what you need and leave.
        """
        with self._driver.lock:
            self._driver.check_open()
            yield self._driver.world

    def cell(self, topic: str, partition: int) -> Cell | None:
        """Return a copy of one cell of the group, None if it was never touched.

        A client reads its own group and no others (§2.2): `marshal claims` shows them all.
        """
        with self._driver.lock:
            self._driver.check_open()
            cell = self._driver.world.cell(self.group_id, topic, partition)
            return None if cell is None else _copy(cell)

    def liveness(self, topic: str, partition: int) -> Liveness | None:
        """Say how alive the holder looks to this client; None if nobody holds the cell."""
        with self._driver.lock:
            self._driver.check_open()
            world = self._driver.world
            cell = world.cell(self.group_id, topic, partition)
            if cell is None or not cell.held:
                return None
            coordinator = world.coordinator(self.group_id, topic, partition)
            version = world.states[coordinator].version(self.group_id, topic, partition)
            observer = self._driver.observers[coordinator]
            return observer.liveness(version, cell.interval_ms, self._driver.clock())

    def listen(
        self, listener: Listener, on_restart: Callable[[str], None] | None = None
    ) -> Callable[[], None]:
        """Call `listener(coordination partition, events)` for what the log brings from now on.

        Runs in the hook thread, in order. Returns a function that ends it. `on_restart` is called,
        with the reason, when the log was made anew or lost records: it has been read from its start
        by then, what came before holds no more, and `world` shows what is.
        """
        if on_restart is None:
            return self._driver.listen(listener)
        hooks = self._driver.hooks
        return self._driver.listen(listener, lambda why: hooks.call(partial(on_restart, why)))

    def set_member_metadata(self, metadata: bytes) -> None:
        """Tell the other members of the group something else (up to 4,096 bytes), at once."""
        with self._driver.lock:
            self._driver.check_open()
            self._driver.refresh_offsets()  # the heartbeat that tells it carries claims, too
            self._driver.claimant.set_member_metadata(metadata, self._driver.clock())
            self._driver.carry_out()

    @property
    def failure(self) -> MarshalError | None:
        """Why this client has stopped claiming, None while it has not."""
        return self._driver.failure

    @property
    def refused(self) -> AccessDenied | None:
        """The right without which this client cannot claim or renew now; None: nothing is refused.

        A right that was taken away while it ran: it tries on, and is well when the right is back.
        """
        return self._driver.refused

    @property
    def snapshot_mismatches(self) -> tuple[SnapshotMismatch, ...]:
        """The snapshots read so far that differ from what this process made of the log.

        Not empty: some client does not follow the protocol, or its memory is damaged. Each is
        logged as an error as well (specs/PROTOCOL.md §6.5); `marshal verify` says who is wrong.
        """
        return tuple(self._driver.mismatches)

    def __repr__(self) -> str:
        return f"<Marshal {self.client_id} in {self.group_id}>"


def _copy(cell: Cell) -> Cell:
    return type(cell)(*(getattr(cell, name) for name in cell.__struct_fields__))


def driver_of(client: Marshal) -> Driver:
    """Return what has the client's thread, its log and its claimant: for this library only."""
    return client._driver  # noqa: SLF001


def registry_of(client: Marshal) -> ClaimRegistry:
    """Return what knows the client's claims: for this library only."""
    return client._registry  # noqa: SLF001
