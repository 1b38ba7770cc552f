// Alerts, the activity stream, and tables of members and leaders.

import { clientColour, css, LIVENESS } from "./colour.js";
import { age, clock, element, moment, whole } from "./format.js";

export const linkTo = (group, topic, partition) =>
  "#/" + ["g", group, topic, partition].filter((part) => part != null).map(encodeURIComponent).join("/");

const KINDS = {
  stale: "Stale holder",
  flapping: "Flapping",
  duplicate_client_id: "Duplicate client id",
  snapshot_mismatch: "Snapshot mismatch",
  growing_lag: "Growing lag",
  stuck: "Stands still",
  pause_expired: "Pause is over",
  topic_hidden: "Hidden topic",
};
const kindName = (kind) =>
  KINDS[kind] ?? kind[0].toUpperCase() + kind.slice(1).replaceAll("_", " ");

export function chip(index) {
  const made = element("span", { class: "chip" });
  made.style.background = css(clientColour(Math.max(0, index)));
  return made;
}

// Open ones first, grave ones first, then the latest.
const inOrder = (alerts) =>
  [...alerts].sort((a, b) =>
    (a.until_ms != null) - (b.until_ms != null)
    || (a.severity === "low") - (b.severity === "low")
    || b.last_ms - a.last_ms);

function alertItem(alert, now) {
  const place = alert.group == null ? null : element("a", {
    href: linkTo(alert.group, alert.topic ?? undefined, alert.topic ? alert.partition ?? undefined : undefined),
    text: alert.group,
  });
  const length = alert.until_ms == null ? age(Math.max(0, now - alert.since_ms)) : `over since ${clock(alert.until_ms)}`;
  return element("li", { class: `alert ${alert.until_ms == null ? alert.severity : "over"}` },
    element("div", { class: "when" },
      element("span", { text: moment(alert.since_ms, now) }),
      element("b", { text: length }),
      alert.count > 1 ? element("span", { text: `×${alert.count}` }) : null,
      place),
    element("p", {}, element("strong", { text: `${kindName(alert.kind)}. ` }), alert.text));
}

export function alertList(alerts, now, limit = Infinity) {
  if (!alerts.length) return element("p", { class: "empty", text: "Nothing needs attention." });
  return element("ol", { class: "list" }, ...inOrder(alerts).slice(0, limit).map((a) => alertItem(a, now)));
}

const VERBS = {
  Claimed: "claimed", TakenOver: "taken over", Resumed: "resumed", Released: "released",
  MemberJoined: "joined", MemberLeft: "left", Rejected: "rejected", Ignored: "ignored",
  GroupPaused: "paused", GroupResumed: "resumed", GroupForgotten: "forgotten",
  PositionSet: "position set", MessagesClaimed: "messages",
};

function eventItem(line) {
  // The text begins with a verb of its own; the coloured one takes its place.
  const text = line.text.slice(line.text.indexOf(" ") + 1);
  const href = line.topic != null ? linkTo(line.group, line.topic, line.partition) : linkTo(line.group);
  return element("li", {},
    element("time", { text: clock(line.at), title: `${moment(line.at, 0)} · ${line.where}` }),
    element("span", {},
      element("span", { class: `k k-${line.kind}`, text: VERBS[line.kind] ?? line.kind }), " ",
      line.group ? element("a", { href, text }) : text,
      line.group ? element("span", { class: "dim", text: ` · ${line.group}` }) : null));
}

function matches(line, filter) {
  if (filter.kind && !filter.kind.includes(line.kind)) return false;
  if (filter.group && line.group !== filter.group) return false;
  if (filter.topic && line.topic !== filter.topic) return false;
  if (!filter.text) return true;
  const text = filter.text.toLowerCase();
  return [line.text, line.group, line.topic, line.client].some((t) => t && t.toLowerCase().includes(text));
}

// The latest first, at most `limit`. `alike`: what happened to many partitions of a topic at about
// the same time is one line.
export function eventList(activity, filter, limit, alike = false) {
  const found = [];
  const known = new Map();
  for (let i = activity.length - 1; i >= 0 && found.length < limit; i--) {
    const line = activity[i];
    if (!matches(line, filter)) continue;
    const key = `${line.kind}\n${line.group}\n${line.topic}\n${Math.floor(line.at / 3000)}`;
    const many = alike && line.topic != null && known.get(key);
    if (many) {
      many.partitions.add(line.partition);
      many.clients.add(line.client);
      continue;
    }
    const entry = { line, partitions: new Set([line.partition]), clients: new Set([line.client]) };
    known.set(key, entry);
    found.push(entry);
  }
  if (!found.length) return element("p", { class: "empty", text: "Nothing yet." });
  return element("ol", { class: "list events" }, ...found.map((entry) =>
    eventItem(entry.partitions.size > 1 ? merged(entry) : entry.line)));
}

function merged({ line, partitions, clients }) {
  const names = [...clients], numbers = [...partitions].sort((a, b) => a - b);
  const some = (list, most) => list.slice(0, most).join(", ") + (list.length > most ? " …" : "");
  const text = `${line.topic} ${numbers.length} partitions (${some(numbers, 3)}) by ${some(names, 2)}`;
  return { ...line, text: `${line.kind} ${text}`, partition: undefined };
}

// A table. Columns are [name, cell(row) → text or node, options]: `n` for numbers, `sort(row)`.
export function table(caption, columns, rows, { order, resort, select } = {}) {
  const head = element("tr", {}, ...columns.map(([name, , options = {}], i) => {
    const sorted = order && Math.abs(order) === i + 1 ? (order > 0 ? "ascending" : "descending") : null;
    const title = options.sort && resort
      ? element("button", { type: "button", text: name, onclick: () => resort(order === i + 1 ? -i - 1 : i + 1) })
      : name;
    return element("th", { scope: "col", class: options.n ? "n" : null, "aria-sort": sorted }, title);
  }));
  const body = element("tbody", {}, ...rows.map((row) => {
    const line = element("tr", { "aria-selected": select?.(row) ? "true" : null });
    for (const [, cell, options = {}] of columns) {
      line.append(element("td", { class: [options.n && "n", options.class].filter(Boolean).join(" ") || null }, cell(row) ?? ""));
    }
    return line;
  }));
  return element("table", {}, element("caption", { class: "unseen", text: caption }), element("thead", {}, head), body);
}

export function sortRows(rows, columns, order) {
  if (!order) return rows;
  const key = columns[Math.abs(order) - 1]?.[2]?.sort;
  if (!key) return rows;
  const sign = Math.sign(order);
  return [...rows].sort((a, b) => {
    const x = key(a), y = key(b);
    return sign * (x < y ? -1 : x > y ? 1 : 0);
  });
}

export function memberColumns(model) {
  const held = new Map(), stale = new Map();
  for (const row of model.rows.values()) {
    for (const [holder, [all, late]] of row.byHolder()) {
      const key = `${row.group}\n${model.clients[holder]}`;
      held.set(key, (held.get(key) ?? 0) + all);
      stale.set(key, (stale.get(key) ?? 0) + late);
    }
  }
  const key = (m) => `${m.group}\n${m.client}`;
  return [
    ["Group", (m) => element("a", { href: linkTo(m.group), text: m.group }), { sort: (m) => m.group }],
    ["Client", (m) => element("span", { class: "who" }, chip(model.clients.indexOf(m.client)), m.client), { sort: (m) => m.client }],
    ["Holds", (m) => whole(held.get(key(m)) ?? 0), { n: true, sort: (m) => held.get(key(m)) ?? 0 }],
    ["Stale", (m) => {
      const n = stale.get(key(m)) ?? 0;
      return element("span", { class: n ? "s-stale" : "dim", text: n ? whole(n) : "–" });
    }, { n: true, sort: (m) => stale.get(key(m)) ?? 0 }],
    ["Interval", (m) => age(m.interval_ms), { n: true, sort: (m) => m.interval_ms }],
    ["Instance", (m) => element("span", { class: "mono dim", text: m.instance })],
    ["Says", (m) => m.says, { class: "wide dim" }],
  ];
}

export function leaderColumns(model) {
  const state = (leader) => {
    const row = model.row(leader.group, leader.topic);
    return row ? LIVENESS[row.live[row.slotOf.get(leader.partition) ?? 0]] : "free";
  };
  return [
    ["Group", (x) => element("a", { href: linkTo(x.group), text: x.group }), { sort: (x) => x.group }],
    ["Of", (x) => element("a", { href: linkTo(x.group, x.topic, x.partition), text: x.name }), { sort: (x) => `${x.topic} ${String(x.partition).padStart(9)}` }],
    ["Kind", (x) => ({ leader: "election", harvest: "outbox shard" })[x.kind] ?? x.kind, { sort: (x) => x.kind, class: "dim" }],
    ["Leader", (x) => x.client
      ? element("span", { class: "who" }, chip(model.clients.indexOf(x.client)), x.client)
      : element("span", { class: "dim", text: "nobody" }), { sort: (x) => x.client ?? "" }],
    ["State", (x) => element("span", { class: `s-${state(x)}`, text: state(x) }), { sort: state }],
    ["Epoch", (x) => (x.epoch >= 0 ? whole(x.epoch) : "–"), { n: true, sort: (x) => x.epoch }],
    ["Interval", (x) => age(x.interval_ms), { n: true }],
    ["Says", (x) => x.says, { class: "wide dim" }],
  ];
}
