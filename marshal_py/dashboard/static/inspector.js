// Everything about one partition: how it stands, who held it, and its whole story on request.

import { clientColour, css, LIVENESS, strangerNumber } from "./colour.js";
import { age, clock, element, moment, whole, visible } from "./format.js";

const HOW = {
  released: "released",
  taken_over: "taken over",
  resumed: "resumed by its next instance",
  claimed_again: "claimed again",
  position_set: "ended by an operator who set the position",
};

export async function ask(path, query, signal) {
  const answer = await fetch(`/api/${path}?${new URLSearchParams(query)}`, { signal });
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.error ?? answer.statusText);
  return found;
}

export class Inspector {
  constructor(panel, { model, travel, actions }) {
    this.panel = panel;
    this.model = model;
    this.travel = travel;
    this.actions = actions;
    this.key = null;
    this.at = null;
    this.found = null;
    this.story = null;
  }

  show(group, topic, partition, at) {
    const same = this.key?.join("\n") === [group, topic, partition].join("\n");
    this.key = [group, topic, partition];
    this.at = at;
    if (!same) {
      this.found = this.story = null;
    }
    this.refresh();
  }

  hide() {
    this.key = null;
    this.abort?.abort();
  }

  async refresh() {
    if (!this.key) return;
    if ((this.model().head.phase ?? "reading") === "reading") return; // nothing is known yet
    this.abort?.abort();
    this.abort = new AbortController();
    const [group, topic, partition] = this.key;
    try {
      this.found = await ask("cell", { group, topic, partition }, this.abort.signal);
      this.draw();
    } catch (error) {
      if (error.name !== "AbortError") this.panel.replaceChildren(element("p", { class: "empty", text: error.message }));
    }
  }

  who(name) {
    const index = this.model().clients.indexOf(name);
    return element("span", { class: "chip", dataset: { client: index > 0 ? index : strangerNumber(name) } });
  }

  draw() {
    const { found, key } = this;
    const [group, topic, partition] = key;
    const now = this.model().now();
    const row = this.model().row(group, topic);
    const slot = row?.slotOf.get(partition);
    const state = slot === undefined ? "free" : LIVENESS[row.live[slot]];
    const children = [
      element("h2", {}, `${topic} / ${partition}`, element("span", { class: `pill ${state}`, text: state })),
    ];
    const body = element("div", { class: "cell" });
    if (this.at != null) body.append(this.then(found, now));
    body.append(this.facts(found, row, slot));
    if (found.book && !this.model().past) body.append(...this.book(found));
    body.append(...this.past(found, now));
    const tell = element("button", { type: "button", text: "Tell its whole story", onclick: () => this.tell() });
    const more = element("div", { class: "more" }, tell, ...this.actions(group, topic, partition));
    if (this.story) body.append(this.told());
    body.append(more);
    children.push(body);
    const scrolled = this.panel.querySelector(".cell")?.scrollTop ?? 0;
    this.panel.replaceChildren(...children);
    body.scrollTop = scrolled;
    this.paint();
  }

  // Colours come from script: the page's policy allows no style attributes in markup.
  paint() {
    for (const chip of this.panel.querySelectorAll("[data-client]")) {
      chip.style.background = css(clientColour(Math.max(0, Number(chip.dataset.client))));
    }
    for (const part of this.panel.querySelectorAll("[data-from]")) {
      part.style.left = `${part.dataset.from}%`;
      part.style.width = `${part.dataset.width}%`;
    }
  }

  then(found, now) {
    const claim = found.claims.findLast((c) =>
      (c.from_ms == null || c.from_ms <= this.at) && (c.until_ms == null || this.at < c.until_ms));
    const held = claim
      ? `held by ${claim.client_id}${claim.from_ms ? ` since ${clock(claim.from_ms)}` : ""}${claim.epoch >= 0 ? `, epoch ${claim.epoch}` : ""}`
      : "held by nobody, as far as the history here reaches";
    const go = element("button", {
      type: "button",
      text: "Show everything at this moment",
      onclick: () => this.travel(this.at),
    });
    return element("div", { class: "then" },
      element("p", {}, element("strong", { text: `At ${moment(this.at, now)}` }), ` ${held}`),
      this.model().past ? null : go);
  }

  facts(found, row, slot) {
    const past = this.model().past;
    const holder = past && row && slot !== undefined ? this.model().clients[row.holders[slot]] : found.holder;
    const list = element("dl");
    const add = (name, value) => {
      if (value == null || value === "") return;
      const shown = value instanceof Node ? value : document.createTextNode(visible(value));
      list.append(element("dt", { text: name }), element("dd", {}, shown));
    };
    add("Holder", holder ? element("span", { class: "who" }, this.who(holder), holder) : "nobody");
    if (past) return list;
    add("Instance", found.instance);
    add("Silent for", found.holder && found.silence_ms != null
      ? `${age(found.silence_ms)} of ${age(found.interval_ms)}` : null);
    add("Epoch", found.epoch >= 0 ? found.epoch : null);
    add("Next offset", found.next_offset >= 0 ? whole(found.next_offset) : null);
    add("Claimed below", found.claimed_offset >= 0 ? whole(found.claimed_offset) : null);
    add("Topic ends at", found.end == null ? null : whole(found.end));
    add("Lag", found.lag == null ? null : whole(found.lag));
    add("Coordinator", found.coordinator);
    add("Says", found.says);
    return list;
  }

  // A partition that is shared by ranges, as a picture: who has which messages, from the first
  // that is not done to the last that was granted, or that there is.
  book({ book, end }) {
    const first = book.position;
    const last = Math.max(book.frontier, end ?? 0, first + 1);
    const place = (from, to) => {
      const share = (offset) => 100 * (Math.min(Math.max(offset, first), last) - first) / (last - first);
      return { from: share(from), width: Math.max(0.4, share(to) - share(from)) };
    };
    const bar = element("div", { class: "book", role: "img",
      "aria-label": `${whole(book.open)} open ranges from ${whole(first)} to ${whole(book.frontier)}` });
    if (end != null && end > book.frontier) bar.append(element("i", { class: "waits", dataset: place(book.frontier, end) }));
    const index = (name) => { const n = this.model().clients.indexOf(name); return n > 0 ? n : strangerNumber(name); };
    for (const [start, stop, position, holder] of book.ranges) {
      const dataset = place(Math.max(start, position), stop);
      if (holder) dataset.client = index(holder);
      bar.append(element("i", { class: holder ? "held" : "free", dataset }));
    }
    const list = element("ol", { class: "history" }, ...book.ranges.slice(0, 40).map(([start, stop, position, holder, granted]) =>
      element("li", {}, holder ? this.who(holder) : element("span"), element("div", {},
        element("span", { text: `${whole(start)} – ${whole(stop - 1)} · ${holder ?? "free"}` }),
        element("small", { text: `at ${whole(position)}${granted > 1 ? ` · granted ${granted} times without progress` : ""}` })))));
    return [
      element("h3", { text: `Its book: ${whole(book.open)} open ranges, new ones begin at ${whole(book.frontier)}` }),
      bar, list,
    ];
  }

  past(found, now) {
    const events = [
      ...found.claims.map((c) => [c.from_ms ?? 0, this.claim(c, now)]),
      ...found.rejections.map((r) => [r.at_ms, this.rejection(r, now)]),
    ].sort((a, b) => b[0] - a[0]);
    if (!events.length) return [];
    return [
      element("h3", { text: "Who held it" }),
      element("ol", { class: "history" }, ...events.slice(0, 60).map(([, item]) => item)),
    ];
  }

  claim(c, now) {
    const from = c.from_ms == null ? "before the history" : moment(c.from_ms, now);
    const until = c.until_ms == null ? "now" : clock(c.until_ms);
    const length = c.from_ms == null ? "" : ` · ${age((c.until_ms ?? now) - c.from_ms)}`;
    let how = HOW[c.how] ?? "";
    if (c.how === "taken_over") {
      how += ` by ${c.by}`;
      if (c.last_ms != null) how += ` after ${age(c.until_ms - c.last_ms)} of silence`;
    }
    return element("li", {}, this.who(c.client_id), element("div", {},
      element("span", { text: c.client_id }),
      element("small", { text: `${from} – ${until}${length}${c.epoch >= 0 ? ` · epoch ${c.epoch}` : ""}` }),
      how ? element("small", { text: how }) : null));
  }

  rejection(r, now) {
    return element("li", {}, element("span", { class: "s-stale", text: "×" }), element("div", {},
      element("span", { text: `${r.client_id}: ${r.record} rejected` }),
      element("small", { text: `${moment(r.at_ms, now)} · ${r.reason.replaceAll("_", " ")}` })));
  }

  async tell() {
    const [group, topic, partition] = this.key;
    this.story = { standing: "reading the log …", entries: [] };
    this.draw();
    const at = this.model().past ? { t: this.model().now() } : this.at != null ? { t: this.at } : {};
    try {
      this.story = await ask("story", { group, topic, partition, ...at });
    } catch (error) {
      this.story = { standing: error.message, entries: [] };
    }
    if (this.key) this.draw();
  }

  told() {
    const now = this.model().now();
    return element("div", {},
      element("h3", { text: "Its story, from the log" }),
      element("ol", { class: "history" },
        element("li", {}, element("span"), element("strong", { text: this.story.standing })),
        ...this.story.entries.toReversed().map((entry) =>
          element("li", {}, element("span"), element("div", {},
            element("span", { text: entry.sentence }),
            element("small", { text: moment(entry.at, now) }))))));
  }
}
