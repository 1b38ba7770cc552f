// The page: one stream from the server, one model, and the view that the address names.

import { Cards, choice } from "./cards.js";
import { onTheme } from "./colour.js";
import { clock, element, moment, plural, visible } from "./format.js";
import { GroupView } from "./group.js";
import { Inspector, ask } from "./inspector.js";
import { AuditView, DeadLettersView } from "./letters.js";
import { alertList, eventList, leaderColumns, memberColumns, sortRows, table } from "./lists.js";
import { Model, byTime } from "./model.js";
import { TimeBar } from "./timebar.js";
import { actionsOf } from "./write.js";

const $ = (id) => document.getElementById(id);
const live = new Model();
let past = null; // a Model of a moment that is over
const model = () => past ?? live;

const settings = { mode: "live", sort: "worst" };
let view = null; // {kind, update(), close()}
let frame = 0;
let lastEvent = performance.now();

// Times are shown in the browser's time zone.
const ZONE = Intl.DateTimeFormat().resolvedOptions().timeZone;
const say = (text) => ($("say").textContent = visible(text));
const filter = () => $("filter").value.trim();

const context = {
  model, live: () => live, filter, say,
  mode: () => settings.mode,
  setMode: (mode) => {
    settings.mode = mode;
    changed();
  },
  sort: () => settings.sort,
  setSort: (sort) => {
    settings.sort = sort;
    changed();
  },
  go: (address) => (location.hash = address),
  choose(group, topic, partition, at = null) {
    chosenAt = at;
    const address = "#/" + ["g", group, topic, partition].map(encodeURIComponent).join("/");
    if (location.hash === address) route();
    else history.replaceState(null, "", address), route();
  },
  travel,
  groupActions: (group, topic) => (past ? [] : actionsOf(live, group, topic)),
};
let chosenAt = null;

// Views

const inspector = new Inspector(element("section", { class: "panel grow", id: "inspector" }), {
  model,
  travel,
  actions: (group, topic, partition) => (past ? [] : actionsOf(live, group, topic, partition)),
});

function address() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return [""]; // somebody has typed a lonely percent sign
  }
}

function route() {
  const [kind, group, topic, partition] = address();
  for (const link of document.querySelectorAll(".top nav a")) {
    const here = link.getAttribute("href").slice(2) === (kind === "g" ? "" : kind);
    if (here) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (kind === "g" && group) {
    if (!(view instanceof GroupView) || view.group !== group) open(new GroupView(context, group), group);
    const number = partition === undefined ? null : Number(partition);
    view.show(topic ?? null, number);
    if (number == null) inspector.hide();
    else inspector.show(group, view.topic, number, chosenAt);
  } else {
    inspector.hide();
    if (kind === "") {
      if (!(view instanceof Cards)) open(new Cards(context), "groups");
    } else if (view?.kind !== kind) {
      open(new (LISTS[kind] ?? LISTS.alerts)(kind, context), kind);
    }
  }
  chosenAt = null;
  const rail = $("rail");
  const inspecting = inspector.key != null;
  if (inspecting !== rail.contains(inspector.panel)) {
    if (inspecting) rail.prepend(inspector.panel);
    else inspector.panel.remove();
    $("rail-activity").hidden = inspecting;
    $("rail-alerts").hidden = inspecting;
  }
  changed();
}

function open(next, title) {
  view?.close?.();
  view = next;
  $("main").replaceChildren(view.root);
  document.title = `${visible(title)} · marshal`;
  scrollTo(0, 0);
}

class TableView {
  constructor(kind) {
    this.kind = kind;
    this.order = 1;
    this.root = element("section", { class: "panel" });
  }

  update() {
    const all = this.rows();
    const text = filter().toLowerCase();
    const columns = this.columns();
    const rows = text ? all.filter((row) => JSON.stringify(row).toLowerCase().includes(text)) : all;
    const known = JSON.stringify([rows, this.order, Math.floor(performance.now() / 1000)]);
    if (known === this.known) return;
    this.known = known;
    const focused = this.root.contains(document.activeElement) ? document.activeElement.textContent : null;
    const resort = (order) => {
      this.order = order;
      this.known = null;
      this.update();
    };
    this.root.replaceChildren(
      element("h1", {}, this.title, element("small", { text: plural(rows.length, this.one) })),
      element("div", {}, rows.length
        ? table(this.title, columns, sortRows(rows, columns, this.order), { order: this.order, resort })
        : element("p", { class: "empty", text: this.nothing })));
    if (focused) [...this.root.querySelectorAll("button, a")].find((b) => b.textContent === focused)?.focus();
  }
}

class Members extends TableView {
  title = "Members";
  one = "member";
  nothing = "Nobody says that it is there.";
  rows = () => model().members;
  columns = () => memberColumns(model());
}

class Leaders extends TableView {
  title = "Leaders and shards";
  one = "leadership";
  nothing = "Nobody has campaigned yet: an election is a claim of leader:NAME.";
  rows = () => model().leaders;
  columns = () => leaderColumns(model());
}

class Alerts {
  constructor(kind) {
    this.kind = kind;
    this.root = element("section", { class: "panel" });
  }

  update() {
    const now = live.now();
    this.root.replaceChildren(
      element("h1", {}, "Alerts", element("small", { text: `${plural(live.openAlerts().length, "alert")} open` })),
      element("div", {}, alertList([...live.alerts.values()], now)));
  }
}

const KIND_FILTERS = [
  ["all", "Everything", null],
  ["claims", "Claims", ["Claimed", "TakenOver", "Resumed", "Released"]],
  ["takeovers", "Takeovers", ["TakenOver"]],
  ["rejections", "Rejections", ["Rejected", "Ignored"]],
  ["members", "Members", ["MemberJoined", "MemberLeft"]],
  ["operators", "Operators", ["GroupPaused", "GroupResumed", "PositionSet", "GroupForgotten"]],
];

class Activity {
  constructor(kind) {
    this.kind = kind;
    this.which = "all";
    this.group = "";
    this.held = null; // activity as it was when the stream was stopped
    this.root = element("section", { class: "panel" });
    this.select = element("select", { "aria-label": "Group", onchange: () => {
      this.group = this.select.value;
      this.update(true);
    } });
    this.kinds = element("span");
    this.stop = element("button", { type: "button", onclick: () => {
      this.held = this.held ? null : [...live.activity];
      this.update(true);
    } });
    this.told = element("span", { class: "dim" });
    this.list = element("div");
    this.root.append(element("h1", { text: "Activity" }),
      element("div", { class: "filters" }, this.kinds, this.select, this.stop, this.told), this.list);
    // What happened before this page was opened.
    ask("activity", {}).then((found) => {
      const known = new Set(live.activity.map((line) => line.n));
      live.activity = [...found.filter((line) => !known.has(line.n)), ...live.activity].sort(byTime);
      this.update(true);
    }, () => {});
  }

  update(force = false) {
    const activity = this.held ?? live.activity;
    const state = `${activity.length} ${activity.at(-1)?.n} ${filter()} ${live.groups.length}`;
    if (state === this.state && !force) return;
    this.state = state;
    this.kinds.replaceChildren(choice("Kinds", KIND_FILTERS, this.which, (key) => {
      this.which = key;
      this.update(true);
    }));
    const names = live.groups.map((g) => g.group);
    if (this.select.options.length !== names.length + 1) {
      this.select.replaceChildren(element("option", { value: "", text: "all groups" }),
        ...names.map((name) => element("option", { value: name, text: name, selected: name === this.group })));
    }
    this.stop.textContent = this.held ? "Go on" : "Hold";
    this.stop.setAttribute("aria-pressed", String(Boolean(this.held)));
    const kind = KIND_FILTERS.find(([key]) => key === this.which)[2];
    this.told.textContent = `the latest 400 of ${plural(activity.length, "event")} that are kept`;
    this.list.replaceChildren(eventList(activity, { kind, group: this.group, text: filter() }, 400));
  }
}

const LISTS = {
  members: Members, leaders: Leaders, alerts: Alerts, activity: Activity,
  "dead-letters": DeadLettersView, audit: AuditView,
};

// Time

const bar = new TimeBar($("timebar"), {
  travel,
  now: () => live.now(),
  from: () => live.head.history_from,
});
let journey = null;

async function travel(at) {
  journey?.abort();
  if (at == null) {
    past = null;
    document.body.classList.remove("past");
    bar.set(null);
    route();
    return;
  }
  bar.set(at);
  journey = new AbortController();
  $("state").textContent = "reading …";
  try {
    const document_ = await ask("at", { t: Math.round(at) }, journey.signal);
    const found = new Model();
    found.past = true;
    found.load(document_);
    found.adopt(live.clients);
    found.head.now = at;
    found.alerts = live.alerts;
    past = found;
    document.body.classList.add("past");
    say(`as it was at ${moment(at)}`);
    route();
  } catch (error) {
    if (error.name === "AbortError") return;
    banner(error.message, 8_000);
    if (!past) bar.set(null);
    changed();
  }
}

async function strip() {
  const to = Math.round(live.now());
  const from = live.head.history_from;
  if (from == null || live.head.phase === "reading") return;
  try {
    bar.show(await ask("strip", { from, to }));
  } catch {
    // It comes again.
  }
}

// Drawing: once a frame at most, whatever comes.

function changed() {
  if (frame) return;
  frame = requestAnimationFrame(() => {
    frame = 0;
    draw();
  });
}

let bannerTimer = 0;
let passing = "";
function banner(text, passesMs = 0) {
  if (passesMs) {
    passing = text;
    clearTimeout(bannerTimer);
    bannerTimer = setTimeout(() => {
      passing = "";
      changed();
    }, passesMs);
  }
  const shown = visible(passing || text);
  $("banner").hidden = !shown;
  if ($("banner").textContent !== shown) $("banner").textContent = shown;
}

function draw() {
  const { head } = live;
  heading(head);
  if (head.phase === "reading" && !past) {
    reading(head);
    return;
  }
  if (view == null || $("main").firstChild !== view.root) {
    if (view) $("main").replaceChildren(view.root);
  }
  view?.update();
  rail();
  bar.update();
}

function heading(head) {
  $("log").textContent = head.topic ? `${visible(head.topic)} · ${plural(head.coordinators, "coordination partition")}${head.wire === "text" ? " · version 1" : ""} · ${ZONE}` : "";
  const gone = performance.now() - lastEvent > 25_000 || stream.readyState === EventSource.CLOSED;
  const phase = past ? "past" : gone ? "lost" : head.phase ?? "reading";
  const state = $("state");
  if (state.dataset.phase !== phase) state.dataset.phase = phase;
  document.body.classList.toggle("unsure", phase === "lost");
  const text = past ? "past" : gone ? "no contact" : { live: "live", reading: "reading", lost: "no contact" }[phase];
  if (state.textContent !== text) state.textContent = text;
  banner(gone && !past ? "The dashboard does not answer. What is shown may be old; it goes on by itself."
    : head.trouble && !past ? `${head.trouble}. What is shown is as it was before.` : "");
  const open_ = live.openAlerts().length;
  $("alert-count").hidden = !open_;
  $("alert-count").textContent = String(open_);
}

function reading(head) {
  let root = document.querySelector(".reading");
  if (!root) {
    root = element("div", { class: "reading" }, element("p", { text: "Reading the coordination log" }),
      element("progress", { max: 1, "aria-label": "Reading the coordination log" }));
    $("main").replaceChildren(root);
  }
  root.querySelector("progress").value = head.progress ?? 0;
}

let railed = "";
function rail() {
  if (inspector.key != null) return;
  const alerts = [...live.alerts.values()];
  const onActivity = location.hash.startsWith("#/activity"), onAlerts = location.hash.startsWith("#/alerts");
  const group = view instanceof GroupView ? view.group : "";
  const now = live.now();
  const state = `${past?.now()} ${live.activity.at(-1)?.n} ${group} ${filter()} ${location.hash} ${Math.floor(now / 1000)} ${alerts.length}`;
  if (state === railed) return;
  railed = state;
  $("rail-activity").hidden = onActivity;
  $("rail-alerts").hidden = onAlerts;
  const until = past ? past.now() : Infinity;
  const known = past ? live.activity.filter((line) => line.at <= until) : live.activity;
  const mine = group ? alerts.filter((a) => a.group == null || a.group === group) : alerts;
  replaceList($("rail-alerts").lastElementChild, alertList(mine, now, 40));
  if (!onActivity) {
    replaceList($("rail-activity").lastElementChild, eventList(known, { group, text: filter() }, 60, true));
  }
}

// Keeps the place of a list that is being read, and does not touch one that has not changed.
function replaceList(box, list) {
  if (box.firstChild?.isEqualNode(list)) return;
  const { scrollTop } = box;
  if (box.contains(document.activeElement)) return;
  box.replaceChildren(list);
  box.scrollTop = scrollTop;
}

// The stream

const stream = new EventSource("/api/stream");
stream.addEventListener("state", (event) => {
  lastEvent = performance.now();
  live.load(JSON.parse(event.data));
  bar.update();
  strip();
  route();
});
stream.addEventListener("delta", (event) => {
  lastEvent = performance.now();
  live.change(JSON.parse(event.data));
  changed();
});
stream.addEventListener("ping", () => (lastEvent = performance.now()));
stream.addEventListener("error", changed);

setInterval(() => {
  changed();
  if (inspector.key && !past) inspector.refresh();
}, 1_000);
setInterval(strip, 5_000);
onTheme(() => {
  if (view instanceof GroupView) view.drawn = null;
  changed();
});
addEventListener("hashchange", route);
addEventListener("resize", changed);
$("filter").addEventListener("input", changed);
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing) {
    event.preventDefault();
    $("filter").focus();
  } else if (event.key === "Escape" && event.target === $("filter")) {
    $("filter").value = "";
    $("filter").blur();
    changed();
  } else if (event.key === "Escape" && !typing && inspector.key) {
    context.go("#/" + ["g", inspector.key[0], inspector.key[1]].map(encodeURIComponent).join("/"));
  }
});
route();

// For tests, which compare what is drawn with the world.
window.marshal = { live, model, context, view: () => view, travel, clock };
