// One group: the map of a topic, its timeline, and the same as a table.

import { LIVENESS, lagText } from "./colour.js";
import { MODES, choice, figures, legend } from "./cards.js";
import { behind, clock, element, plural, whole, visible } from "./format.js";
import { HeatMap } from "./heat.js";
import { ask } from "./inspector.js";
import { Lanes } from "./lanes.js";
import { chip, linkTo, memberColumns, sortRows, table } from "./lists.js";

const PAGE = 200;

export class GroupView {
  constructor(context, group) {
    this.context = context;
    this.group = group;
    this.topic = null;
    this.partition = null;
    this.asTable = false;
    this.order = 1;
    this.page = 0;
    this.root = element("div");
    this.crumbs = element("div", { class: "crumbs" });
    this.numbers = element("div");
    this.tools = element("div", { class: "tools" });
    this.pointed = element("span", { class: "pointed" });
    this.mapHead = element("div", { class: "head" });
    this.map = element("div", { class: "map" });
    this.list = element("div", { hidden: true });
    this.told = element("output", { class: "pointed" });
    this.scroller = element("div", { class: "lanes", role: "application", "aria-roledescription": "timeline" });
    const canvas = element("canvas", { "aria-hidden": "true" });
    const spacer = element("div", { class: "spacer" });
    this.scroller.append(canvas, spacer);
    this.people = element("div", { tabindex: 0, role: "region", "aria-label": "Members" });
    this.root.append(
      this.crumbs, this.numbers, this.tools,
      element("section", { class: "panel", "aria-label": "Partitions" }, this.mapHead, this.map, this.list),
      element("section", { class: "panel", "aria-label": "Timeline" },
        element("div", { class: "head" }, element("span", { text: "Timeline" }), this.zooms(), this.told), this.scroller),
      element("section", { class: "panel" }, element("h2", { text: "Members" }), this.people));
    this.heat = new HeatMap(this.map, {
      pick: (partition) => context.choose(this.group, this.topic, partition),
      hover: (partition) => {
        this.pointed.textContent = partition == null ? "" : visible(this.heat.describe(partition));
      },
      say: context.say,
    });
    this.lanes = new Lanes({
      frame: this.root, scroller: this.scroller, canvas, spacer, told: this.told,
      pick: (partition, at) => context.choose(this.group, this.topic, partition, at),
      travel: context.travel,
    });
    this.resized = new ResizeObserver(() => {
      this.heat.draw();
      this.lanes.later();
    });
    this.resized.observe(this.root);
    this.asked = 0;
  }

  close() {
    this.resized.disconnect();
    this.lanes.clear();
    this.lanes.following = false;
    this.closed = true;
  }

  zooms() {
    const button = (text, label, action) =>
      element("button", { type: "button", text, "aria-label": label, onclick: () => this.lanes.data && action() });
    const made = element("span", { class: "choice" });
    made.append(
      button("−", "Zoom out", () => this.lanes.zoom(1.6)),
      button("+", "Zoom in", () => this.lanes.zoom(0.6)),
      button("1 min", "Last minute", () => this.lanes.last(6e4)),
      button("10 min", "Last ten minutes", () => this.lanes.last(6e5)),
      button("all", "All of it", () => this.lanes.fit()));
    return made;
  }

  show(topic, partition) {
    const rows = this.context.model().rowsOf(this.group);
    const wanted = topic ?? rows[0]?.topic ?? null;
    if (wanted !== this.topic) {
      this.topic = wanted;
      this.lanes.clear();
      this.asked = 0;
      this.page = 0;
    }
    this.partition = partition;
    this.heat.chosen = partition;
    this.update();
    if (partition != null) this.lanes.choose(partition);
  }

  row() {
    return this.topic == null ? null : this.context.model().row(this.group, this.topic);
  }

  update() {
    if (this.topic == null) this.topic = this.context.model().rowsOf(this.group)[0]?.topic ?? null;
    const model = this.context.model();
    const rows = model.rowsOf(this.group);
    const row = this.row();
    const s = model.summary(this.group, rows);
    this.header(model, rows, s);
    this.mapHead.hidden = this.map.hidden = this.list.hidden = !row;
    if (row) {
      const text = this.context.filter().toLowerCase();
      this.heat.client = text ? Math.max(0, model.clients.findIndex((name) => name && name.toLowerCase().includes(text))) : 0;
      this.map.hidden = this.asTable;
      this.list.hidden = !this.asTable;
      const drawn = `${row.version} ${this.context.mode()} ${this.heat.client} ${this.partition} ${model.past} ${model.now() * model.past}`;
      if (drawn !== this.drawn || this.heat.row !== row) {
        this.drawn = drawn;
        if (this.asTable) this.table(row);
        else this.heat.show(row, this.context.mode(), model.clients);
      }
      this.history(row);
    }
    this.members(model);
  }

  header(model, rows, s) {
    const text = JSON.stringify([s, rows.map((r) => r.topic), this.topic, this.context.mode(), this.asTable, model.head.write,
      matchMedia("(prefers-color-scheme: dark)").matches]);
    if (text === this.headed) return;
    this.headed = text;
    const pill = (kind, what) => element("span", { class: `pill ${kind}`, text: what });
    this.crumbs.replaceChildren(
      element("a", { href: "#/", text: "Groups" }), element("span", { class: "dim", text: "/" }),
      element("h1", { text: this.group }),
      element("span", { class: "pills" },
        s.pausedUntil == null ? null : pill("paused", s.pausedUntil > model.now() ? `paused until ${clock(s.pausedUntil)}` : "its pause is over"),
        s.stale ? pill("stale", `${whole(s.stale)} stale`) : null));
    this.numbers.replaceChildren(figures([
      ["partitions", whole(s.partitions)], ["held", whole(s.held)],
      ["stale", whole(s.stale), s.stale ? "bad" : null],
      ["unknown", whole(s.unknown), s.unknown ? "odd" : null],
      ["free", whole(s.free)], ["members", whole(s.members)],
      s.lag == null && !s.lagUnknown ? null : ["messages behind", behind(s.lag, s.lagUnknown), s.lagUnknown ? "odd" : null],
    ]));
    const focused = this.tools.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.tools.replaceChildren(
      choice("Colour by", MODES, this.context.mode(), this.context.setMode),
      legend(this.context.mode()),
      element("div", { class: "right" },
        ...this.context.groupActions(this.group, this.topic),
        choice("Show as", [["map", "Map"], ["table", "Table"]], this.asTable ? "table" : "map", (key) => {
          this.asTable = key === "table";
          this.drawn = null;
          this.update();
        })));
    if (focused) [...this.tools.querySelectorAll("button")].find((b) => b.textContent === focused)?.focus();
    const topics = rows.length > 1
      ? element("nav", { class: "topics choice", "aria-label": "Topics" }, ...rows.map((r) =>
        element("button", {
          type: "button", text: r.leader ? `leader ${r.topic.slice(7)}` : r.topic,
          "aria-pressed": String(r.topic === this.topic),
          onclick: () => this.context.go(linkTo(this.group, r.topic)),
        })))
      : element("span", { text: this.topic ?? "" });
    this.mapHead.replaceChildren(topics, this.pointed);
  }

  table(row) {
    const model = this.context.model();
    const columns = [
      ["Partition", (slot) => element("a", { href: linkTo(row.group, row.topic, row.partitions[slot]), text: row.partitions[slot] }),
        { n: true, sort: (slot) => row.partitions[slot] }],
      ["Holder", (slot) => row.holders[slot]
        ? element("span", { class: "who" }, chip(row.holders[slot]), model.clients[row.holders[slot]])
        : element("span", { class: "dim", text: "nobody" }), { sort: (slot) => model.clients[row.holders[slot]] }],
      ["State", (slot) => element("span", { class: `s-${LIVENESS[row.live[slot]]}`, text: LIVENESS[row.live[slot]] }), { sort: (slot) => row.live[slot] }],
      ["Lag", (slot) => lagText(row.lag[slot]), { n: true, sort: (slot) => row.lag[slot] }],
    ];
    const sorted = sortRows([...row.inOrder()], columns, this.order);
    const pages = Math.max(1, Math.ceil(sorted.length / PAGE));
    this.page = Math.min(this.page, pages - 1);
    const again = (change) => () => {
      change();
      this.drawn = null;
      this.update();
    };
    const focused = this.list.contains(document.activeElement) ? document.activeElement.textContent : null;
    this.list.replaceChildren(
      table(`Partitions of ${row.topic}`, columns, sorted.slice(this.page * PAGE, (this.page + 1) * PAGE), {
        order: this.order,
        resort: (order) => again(() => (this.order = order))(),
        select: (slot) => row.partitions[slot] === this.partition,
      }),
      element("div", { class: "pager" },
        element("button", { type: "button", text: "Earlier", disabled: this.page === 0, onclick: again(() => this.page--) }),
        element("button", { type: "button", text: "Later", disabled: this.page >= pages - 1, onclick: again(() => this.page++) }),
        element("span", { text: `${this.page * PAGE + 1}–${Math.min(sorted.length, (this.page + 1) * PAGE)} of ${plural(sorted.length, "partition")}` })));
    if (focused) [...this.list.querySelectorAll("button, a")].find((b) => b.textContent === focused)?.focus();
  }

  // The claims of the row; asked again when a holder changed, and every now and then.
  async history(row) {
    const now = performance.now();
    const changed = this.ownedAsked !== row.owned || this.rowAsked !== row;
    const shown = this.context.model().past ? this.context.model().now() : null;
    if (this.lanes.data && this.lanes.moment !== shown) this.lanes.show(this.lanes.data, this.context.live(), shown);
    if (this.asking || (this.asked && now - this.asked < (changed ? 1_500 : 10_000))) return;
    if (this.asked && !changed && this.context.model().past) return;
    this.asking = true;
    if (!this.asked) this.told.textContent = "reading …";
    this.asked = now;
    this.ownedAsked = row.owned;
    this.rowAsked = row;
    const live = this.context.live();
    const topic = this.topic;
    try {
      const data = await ask("lanes", {
        group: this.group, topic, from: live.head.history_from ?? 0, to: Math.round(live.now()),
      });
      if (!this.closed && topic === this.topic) {
        if (this.told.textContent === "reading …") this.told.textContent = "";
        this.lanes.show(data, live, shown);
        if (this.partition != null) this.lanes.choose(this.partition);
        const known = data.lanes.reduce((sum, lane) => sum + lane.bars.length, 0);
        this.scroller.setAttribute("aria-label",
          `Timeline of ${topic}: ${plural(data.lanes.length, "partition")}, ${plural(known, "claim")}. `
          + "Arrow keys move the cursor, plus and minus zoom, Enter shows everything at that moment.");
      }
    } catch (error) {
      this.told.textContent = visible(error.message);
    } finally {
      this.asking = false;
    }
  }

  members(model) {
    const text = JSON.stringify([model.members.filter((m) => m.group === this.group), this.row()?.owned]);
    if (text === this.crowd) return;
    this.crowd = text;
    const members = model.members.filter((m) => m.group === this.group);
    this.people.replaceChildren(members.length
      ? table("Members", memberColumns(model).slice(1), members)
      : element("p", { class: "empty", text: "No member of this group says that it is there." }));
  }
}
