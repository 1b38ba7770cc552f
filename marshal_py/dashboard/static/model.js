// The grid of cells in the page: what the server sent, and what changed since.

import { FREE, STALE, UNKNOWN } from "./colour.js";

// "0-99,105" → callback(first, last) for each range
function eachRange(text, callback) {
  if (!text) return;
  for (const part of text.split(",")) {
    const dash = part.indexOf("-");
    if (dash < 0) callback(Number(part), Number(part));
    else callback(Number(part.slice(0, dash)), Number(part.slice(dash + 1)));
  }
}

// Lines of the activity stream: those of several coordination partitions come as they are read.
export const byTime = (a, b) => a.at - b.at || a.n - b.n;

const grown = (kind, old, size) => {
  const made = new kind(size);
  made.set(old.subarray(0, Math.min(old.length, size)));
  return made;
};

class Row {
  constructor(document) {
    this.number = document.row;
    this.group = document.group;
    this.topic = document.topic;
    this.leader = document.topic.startsWith("leader:");
    this.partitions = [];
    this.holders = new Uint32Array(0);
    this.live = new Uint8Array(0);
    this.lag = new Uint8Array(0);
    this.lagTotal = null;
    this.lagMax = null;
    this.lagUnknown = 0;
    this.slotOf = new Map();
    this.order = null;
    this.counts = null;
    this.version = 0; // grows with every change
    this.owned = 0; // grows with every change of a holder
    this.apply(document);
  }

  apply(change) {
    if (change.partitions) {
      eachRange(change.partitions, (first, last) => {
        for (let p = first; p <= last; p++) {
          this.slotOf.set(p, this.partitions.length);
          this.partitions.push(p);
        }
      });
      const size = this.partitions.length;
      this.holders = grown(Uint32Array, this.holders, size);
      this.live = grown(Uint8Array, this.live, size);
      this.lag = grown(Uint8Array, this.lag, size);
      this.order = null;
    }
    for (const name of ["holders", "live", "lag"]) {
      const values = this[name];
      for (const [value, slots] of Object.entries(change[name] ?? {})) {
        eachRange(slots, (first, last) => values.fill(Number(value), first, last + 1));
      }
    }
    if (change.holders) this.owned++;
    if ("lag_total" in change) {
      this.lagTotal = change.lag_total;
      this.lagMax = change.lag_max;
      this.lagUnknown = change.lag_unknown;
    }
    this.counts = null;
    this.version++;
  }

  // Slots in the order of their partitions.
  inOrder() {
    if (!this.order) {
      this.order = Uint32Array.from(this.partitions.keys());
      const sorted = this.partitions.every((p, i) => i === 0 || p > this.partitions[i - 1]);
      if (!sorted) this.order.sort((a, b) => this.partitions[a] - this.partitions[b]);
    }
    return this.order;
  }

  // Holder → [cells that it holds, stale ones among them]
  byHolder() {
    if (this.heldAt !== this.version) {
      this.heldAt = this.version;
      this.held = new Map();
      for (let slot = 0; slot < this.holders.length; slot++) {
        const holder = this.holders[slot];
        if (!holder) continue;
        let counts = this.held.get(holder);
        if (!counts) this.held.set(holder, (counts = [0, 0]));
        counts[0]++;
        if (this.live[slot] === STALE) counts[1]++;
      }
    }
    return this.held;
  }

  // [free, fresh, unknown, stale]
  count() {
    if (!this.counts) {
      this.counts = [0, 0, 0, 0];
      for (const code of this.live) this.counts[code]++;
    }
    return this.counts;
  }
}

export class Model {
  constructor() {
    this.rows = new Map();
    this.clients = [""];
    this.groups = [];
    this.members = [];
    this.leaders = [];
    this.alerts = new Map();
    this.activity = [];
    this.head = {};
    this.shape = 0; // grows when rows come or go
    this.offsetMs = 0; // the server's clock, from this one's
    this.past = false;
  }

  load(document) {
    this.clients = document.clients ?? [""];
    this.rows = new Map((document.rows ?? []).map((row) => [row.row, new Row(row)]));
    this.alerts = new Map((document.alerts ?? []).map((alert) => [alert.number, alert]));
    this.activity = document.activity ?? [];
    this.shape++;
    this.rest(document);
  }

  change(document) {
    if (document.clients) this.clients.push(...document.clients);
    for (const number of document.removed ?? []) this.rows.delete(number);
    for (const row of document.new ?? []) this.rows.set(row.row, new Row(row));
    if (document.removed || document.new) this.shape++;
    for (const change of document.cells ?? []) this.rows.get(change.row)?.apply(change);
    for (const alert of document.alerts ?? []) this.alerts.set(alert.number, alert);
    for (const number of document.alerts_gone ?? []) this.alerts.delete(number);
    if (document.activity) {
      this.activity.push(...document.activity);
      this.activity.sort(byTime);
      if (this.activity.length > 10_000) this.activity.splice(0, this.activity.length - 10_000);
    }
    this.rest(document);
  }

  // Gives clients the numbers, and so the colours, that they have in another model.
  adopt(clients) {
    const numbers = new Map(clients.map((name, number) => [name, number]));
    const all = [...clients];
    const now = this.clients.map((name) => {
      if (!numbers.has(name)) {
        numbers.set(name, all.length);
        all.push(name);
      }
      return numbers.get(name);
    });
    for (const row of this.rows.values()) row.holders = row.holders.map((holder) => now[holder]);
    this.clients = all;
  }

  rest(document) {
    for (const name of ["groups", "members", "leaders"]) {
      if (document[name]) this[name] = document[name];
    }
    for (const name of ["topic", "wire", "coordinators", "phase", "trouble", "progress", "history_from", "write"]) {
      if (name in document) this.head[name] = document[name];
    }
    if (document.now) {
      this.head.now = document.now;
      this.offsetMs = document.now - Date.now();
    }
  }

  // The server's time; of a model of the past, its moment.
  now() {
    return this.past ? this.head.now : Date.now() + this.offsetMs;
  }

  rowsOf(group) {
    return [...this.rows.values()]
      .filter((row) => row.group === group)
      .sort((a, b) => a.leader - b.leader || (a.topic < b.topic ? -1 : 1));
  }

  row(group, topic) {
    for (const row of this.rows.values()) {
      if (row.group === group && row.topic === topic) return row;
    }
    return null;
  }

  // What a card says of a group.
  summary(group, rows) {
    const counts = [0, 0, 0, 0];
    let lag = null, lagUnknown = 0, partitions = 0;
    for (const row of rows) {
      row.count().forEach((n, code) => (counts[code] += n));
      if (!row.leader) partitions += row.partitions.length;
      if (row.lagTotal != null) lag = (lag ?? 0) + row.lagTotal;
      lagUnknown += row.lagUnknown;
    }
    const about = this.groups.find((g) => g.group === group);
    return {
      counts,
      lag,
      lagUnknown,
      partitions,
      held: counts[1] + counts[UNKNOWN] + counts[STALE],
      free: counts[FREE],
      stale: counts[STALE],
      unknown: counts[UNKNOWN],
      pausedUntil: about?.paused_until_ms ?? null,
      members: this.members.filter((m) => m.group === group).length,
    };
  }

  openAlerts() {
    return [...this.alerts.values()].filter((alert) => alert.until_ms == null);
  }
}
