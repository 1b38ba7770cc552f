// Dead letters: which there are, why, and where they go when they are replayed; and who did what.

import { element, moment, plural, whole } from "./format.js";
import { ask } from "./inspector.js";
import { linkTo, table } from "./lists.js";
import { askToReplay } from "./write.js";

const STEP = 100, MOST = 1_000;
const idOf = (letter) => `${letter.partition}@${letter.offset}`;

// What both views share: they ask when they are opened, and when somebody wants to know again.
class Asked {
  constructor(kind, context, title) {
    this.kind = kind;
    this.context = context;
    this.root = element("section", { class: "panel" });
    this.count = element("small");
    this.told = element("p", { class: "empty", role: "status" });
    this.body = element("div", { tabindex: 0, role: "region", "aria-label": title });
    this.bar = element("div", { class: "filters" },
      element("button", { type: "button", text: "Read again", onclick: () => this.look() }));
    this.root.append(element("h1", {}, title, this.count), this.bar, this.told, this.body);
  }

  close() {
    this.closed = true;
  }

  async look() {
    const turn = this.turn = (this.turn ?? 0) + 1; // an answer that comes late is nobody's
    this.tell("reading …");
    try {
      const found = await this.read();
      if (this.closed || turn !== this.turn) return;
      Object.assign(this, found);
      this.draw();
    } catch (error) {
      if (turn === this.turn) this.tell(error.message);
    }
  }

  tell(text) {
    this.told.hidden = !text;
    this.told.replaceChildren(element("span", { text }));
  }

  // Called whenever anything changes: only the filter matters here.
  update() {
    if (this.drawnFilter !== undefined && this.drawnFilter !== this.context.filter()) this.draw();
  }

  fits(row) {
    this.drawnFilter = this.context.filter();
    return JSON.stringify(row).toLowerCase().includes(this.drawnFilter.toLowerCase());
  }
}

export class DeadLettersView extends Asked {
  constructor(kind, context) {
    super(kind, context, "Dead letters");
    this.topics = [];
    this.letters = [];
    this.unknown = [];
    this.chosen = new Set();
    this.limit = STEP;
    this.select = element("select", { "aria-label": "Topic", onchange: () => {
      this.topic = this.select.value;
      this.chosen.clear();
      this.limit = STEP;
      this.look();
    } });
    this.more = element("button", { type: "button", text: "Show more", hidden: true, onclick: () => {
      this.limit = Math.min(MOST, this.limit + STEP);
      this.look();
    } });
    this.all = element("button", { type: "button", hidden: true, onclick: () => {
      const shown = this.shown().map(idOf);
      const every = shown.every((id) => this.chosen.has(id));
      for (const id of shown) every ? this.chosen.delete(id) : this.chosen.add(id);
      this.draw();
    } });
    this.replay = element("button", { type: "button", hidden: true, onclick: () => {
      const letters = this.letters.filter((letter) => this.chosen.has(idOf(letter)));
      askToReplay(this.topic, letters.map((letter) => [letter.partition, letter.offset]), () => {
        this.chosen.clear();
        this.look();
      });
    } });
    this.bar.prepend(this.select);
    this.bar.append(this.more, this.all, this.replay);
    this.look();
  }

  async read() {
    const { topics, pattern } = await ask("dead-letters", {});
    const topic = topics.some((each) => each.topic === this.topic) ? this.topic : topics[0]?.topic;
    // One topic that cannot be read must not hide the others.
    const { letters, replayed, unknown } = topic === undefined ? { letters: [], replayed: [], unknown: [] }
      : await ask("dead-letters", { topic, limit: this.limit })
        .catch((error) => ({ letters: [], replayed: [], unknown: [error.message] }));
    const known = new Map();
    for (const entry of replayed) { // the latest first
      for (const [partition, offset] of entry.letters) {
        const id = idOf({ partition, offset });
        if (!known.has(id)) known.set(id, entry);
      }
    }
    return { topics, pattern, topic, letters, replayed: known, unknown };
  }

  shown() {
    return this.letters.filter((letter) => this.fits(letter));
  }

  draw() {
    const { write } = this.context.live().head;
    this.select.hidden = !this.topics.length;
    this.select.replaceChildren(...this.topics.map(({ topic, records, offline }) =>
      element("option", { value: topic, text: `${topic} (${offline.length ? "at least " : ""}${whole(records)})`, selected: topic === this.topic })));
    const rows = this.shown();
    const total = this.topics.find((each) => each.topic === this.topic)?.records ?? 0;
    this.count.textContent = this.letters.length ? `${whole(rows.length)} of the latest ${whole(this.letters.length)}` : "";
    this.more.hidden = this.limit >= Math.min(MOST, total);
    this.all.hidden = this.replay.hidden = !write || !rows.length;
    this.all.textContent = rows.every((row) => this.chosen.has(idOf(row))) ? "Choose none" : "Choose all that are shown";
    this.replay.disabled = !this.chosen.size;
    this.replay.textContent = `Replay ${plural(this.chosen.size, "letter")} …`;
    this.tell([...this.unknown, rows.length ? "" : this.letters.length ? "No letter fits the filter."
      : this.unknown.length ? "" : this.topics.length ? "No dead letter in this topic." : `There is no topic of dead letters: none is called ${this.pattern}.`].filter(Boolean).join(" "));
    this.body.replaceChildren(...(rows.length ? [table("Dead letters", this.columns(write), rows)] : []));
  }

  columns(write) {
    const columns = [
      ["Letter", (l) => element("span", { class: "mono", text: idOf(l) })],
      ["Given up", (l) => moment(l.at_ms)],
      ["From", (l) => (l.topic == null ? "not told" : l.group == null || l.source_partition == null ? `${l.topic}/${l.source_partition}`
        : element("a", { href: linkTo(l.group, l.topic, l.source_partition), text: `${l.topic}/${l.source_partition}@${l.source_offset}` })), { class: "mono" }],
      ["By", (l) => [l.group, l.client].filter((name) => name != null).join(" · ")],
      ["Tried", (l) => whole(l.attempts), { n: true }],
      ["Cause and content", (l) => this.content(l), { class: "wide" }],
      ["Replayed", (l) => {
        const entry = this.replayed.get(idOf(l));
        return entry == null ? "" : entry.phase === "asked" ? `perhaps, ${moment(entry.at_ms)}` : `${moment(entry.at_ms)} by ${entry.who}`;
      }],
    ];
    if (write) columns.unshift(["Choose", (l) => {
      const box = element("input", { type: "checkbox", "aria-label": `letter ${idOf(l)}`, onchange: () => {
        if (box.checked) this.chosen.add(idOf(l));
        else this.chosen.delete(idOf(l));
        this.draw();
        [...this.body.querySelectorAll("input")].find((other) => other.getAttribute("aria-label") === box.getAttribute("aria-label"))?.focus();
      } });
      box.checked = this.chosen.has(idOf(l));
      return box;
    }]);
    return columns;
  }

  content(letter) {
    this.opened ??= new Set();
    const id = `${this.topic} ${idOf(letter)}`;
    const part = (name, text) => [element("dt", { text: name }), element("dd", { text: text ?? "(null)" })];
    const made = element("details", { class: "letter", open: this.opened.has(id), ontoggle: () => {
      if (made.open) this.opened.add(id);
      else this.opened.delete(id);
    } },
      element("summary", {}, element("b", { text: letter.error_class ?? "no cause told" }), " ", letter.error_message ?? ""),
      element("dl", {},
        ...part("key", letter.key),
        ...part(`value, ${plural(letter.size, "byte")}`, letter.value),
        ...letter.headers.flatMap(([name, value]) => part(name, value))));
    return made;
  }
}

export class AuditView extends Asked {
  constructor(kind, context) {
    super(kind, context, "Audit");
    this.entries = [];
    this.look();
  }

  read = async () => ({ entries: await ask("audit", {}) });

  draw() {
    const rows = this.entries.filter((entry) => this.fits(entry));
    this.count.textContent = plural(rows.length, "action");
    this.tell(rows.length ? "" : this.entries.length ? "No action fits the filter." : "Nobody has done anything from a dashboard.");
    const ends = { asked: "how it ended is not known", done: "done", failed: "failed" };
    this.body.replaceChildren(...(rows.length ? [table("Actions", [
      ["When", (e) => moment(e.at_ms)],
      ["Who", (e) => e.who],
      ["What", (e) => e.what],
      ["State", (e) => element("span", { class: e.phase === "done" ? "" : "s-stale", text: ends[e.phase] })],
      ["Outcome", (e) => e.text ?? "", { class: "wide dim" }],
    ], rows)] : []));
  }
}
