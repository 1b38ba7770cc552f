"""What each kind of incident of a scenario does to a running simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.common import GARBAGE, MS, US
from tests.simulation.scenario import Incident

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.simulator import Simulation


class Incidents:
    """One method for each kind of incident, of the arguments that `scenario` gives it."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim

    def carry_out(self, incident: Incident) -> None:
        getattr(self, f"_do_{incident.kind}")(incident.who, *incident.args)

    def _process(self, slot: int) -> Process | None:
        process = self.sim.slots.get(slot)
        return process if process is not None and not process.dead else None

    def _do_start(self, slot: int) -> None:
        self.sim.start(slot)

    _do_restart = _do_start

    def _do_crash(self, slot: int, lose_in_flight: bool) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.fired["crash"] += 1
            self.sim.crash(process, lose_in_flight=lose_in_flight)

    def _do_crash_amid_send(self, slot: int, sent: int, lose_in_flight: bool) -> None:
        process = self._process(slot)
        if process is not None:
            process.crash_amid_send = (sent, lose_in_flight)

    def _do_freeze(self, slot: int, span: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.fired["freeze"] += 1
            process.freeze(span * US)

    def _do_freeze_before_send(self, slot: int, span: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.freeze_before_send = span * US

    def _do_cut_write(self, slot: int, span: int, mode: str, fail_after: int, late: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.tell(process.name, f"cannot write for {span / 1e3:.0f} ms ({mode})")
            process.write_cut = (self.sim.now + span * US, mode, fail_after * US, late * US)

    def _do_cut_read(self, slot: int, span: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.tell(process.name, f"cannot read for {span / 1e3:.0f} ms")
            process.read_cut_until = self.sim.now + span * US
            self.sim.at(process.read_cut_until, process.catch_up_reading)

    def _do_slow_read(self, slot: int, span: int, extra: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.fired["slow_read"] += 1
            self.sim.tell(process.name, f"reads {extra / 1e3:.0f} ms late for {span / 1e3:.0f} ms")
            if not process.slow_for_good:
                process.slow_until = self.sim.now + span * US
                process.slow_read_ns = extra * US
                process.slow_write_ns = 0

    def _do_slow_write(self, slot: int, span: int, extra: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.fired["slow_write"] += 1
            self.sim.tell(process.name, f"writes {extra / 1e3:.0f} ms late for {span / 1e3:.0f} ms")
            if not process.slow_for_good:
                process.slow_until = self.sim.now + span * US
                process.slow_write_ns = extra * US
                process.slow_read_ns = 0

    def _do_duplicate(self, slot: int, span: int, delay: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.duplicate_until = self.sim.now + span * US
            process.duplicate_delay_ns = delay * US

    def _do_rate(self, slot: int, rate_ppm: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.fired["clock_rate_change"] += 1
            process.clock.change_rate(self.sim.now, rate_ppm)
            process.wake_at = -1
            process.step()

    def _do_skew(self, p: int, skew_ms: int) -> None:
        self.sim.fired["broker_clock_skew"] += 1
        self.sim.tell(f"log {p}", f"broker clock is {skew_ms} ms off")
        self.sim.skew_ms[p] = skew_ms

    def _do_leader_change(self, p: int, span: int, skew_ms: int) -> None:
        self.sim.fired["leader_change"] += 1
        self.sim.tell(f"log {p}", f"has no leader for {span / 1e3:.0f} ms")
        self.sim.down_until[p] = self.sim.by_heal(self.sim.now + span * US)
        self.sim.skew_ms[p] = skew_ms

    def _do_jump(self, slot: int, by_ms: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.fired["clock_jump"] += 1
            self.sim.tell(process.name, f"clock jumps {by_ms} ms ahead")
            process.clock.jump(self.sim.now, by_ms * MS)
            process.jumps.append((self.sim.now, by_ms * MS))
            process.wake_at = -1
            process.step()

    def _do_gap(self, p: int, offsets: int) -> None:
        self.sim.fired["offset_gap"] += 1
        self.sim.log.partitions[p].skip(offsets)

    def _do_garbage(self, p: int, which: int) -> None:
        self.sim.fired["garbage_record"] += 1
        self.sim.write(None, p, GARBAGE[which])

    def _do_truncate(self, p: int, records: int) -> None:
        self.sim.truncate(p, records)

    def _do_release(self, slot: int, key: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.call(process.user.release, key)

    def _do_want(self, slot: int, key: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.call(process.user.want, key)

    def _do_leave(self, slot: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.fired["leave"] += 1
            process.call(process.user.leave)

    def _do_slow_act(self, slot: int, span: int) -> None:
        process = self._process(slot)
        if process is not None:
            process.user.slow_act(span * US)

    def _do_pause_group(self, group: int) -> None:
        self.sim.operator.pause(self.sim.scenario.groups[group])

    def _do_resume_group(self, group: int) -> None:
        self.sim.operator.resume(self.sim.scenario.groups[group])

    def _do_set_position(self, group: int, key: int, next_offset: int) -> None:
        cell = (self.sim.scenario.groups[group], *self.sim.scenario.keys[key])
        self.sim.operator.positions[cell] = next_offset
        self.sim.operator.step()

    def _do_forget_group(self, group: int) -> None:
        name = self.sim.scenario.groups[group]
        self.sim.operator.forgets.update((name, p) for p in range(self.sim.scenario.partitions))
        self.sim.operator.step()

    def _do_upgrade(self, slot: int, lowest: int, highest: int, leaves: bool) -> None:
        """The process ends, in peace or not; whoever starts in its place follows other levels."""
        process = self._process(slot)
        if process is not None:
            self.sim.fired["upgrade"] += 1
            self.sim.tell(process.name, f"is replaced by one of levels {lowest} to {highest}")
            if leaves:
                process.call(process.user.leave)
            else:
                self.sim.crash(process, lose_in_flight=False)
        self.sim.scenario.processes[slot].levels = (lowest, highest)

    def _do_set_level(self, group: int, level: int) -> None:
        self.sim.operator.set_level(self.sim.scenario.groups[group], level)

    def _do_recover(self, p: int) -> None:
        self.sim.operator.recover(p)

    def _do_stop_claiming(self, slot: int) -> None:
        process = self._process(slot)
        if process is not None:
            self.sim.fired["stop_claiming"] += 1
            process.call(process.stop_claiming)

    def _do_stranger(self, p: int, which: int) -> None:
        self.sim.fired["stranger"] += 1
        self.sim.operator.meddle(p, which)
