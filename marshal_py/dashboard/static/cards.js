// The overview: a card for each group with a small map of all its partitions.

import { FREE, FRESH, STALE, UNKNOWN, clientColour, css, lagColour, theme } from "./colour.js";
import { behind, clock, element, plural, whole } from "./format.js";
import { drawMini } from "./heat.js";
import { linkTo } from "./lists.js";

export function figures(entries) {
  return element("dl", { class: "figures" }, ...entries.filter(Boolean).map(([name, value, kind]) =>
    element("div", { class: kind ?? null }, element("dt", { text: name }), element("dd", { text: value }))));
}

export function legend(mode) {
  const { live } = theme();
  const made = element("div", { class: "legend" });
  const entry = (colour, text) => {
    const square = element("i");
    square.style.background = css(colour);
    made.append(element("span", {}, square, text));
  };
  if (mode === "live") {
    entry(live[FRESH], "fresh");
    entry(live[UNKNOWN], "unknown: late");
    entry(live[STALE], "stale: may be taken");
    entry(live[FREE], "free");
  } else if (mode === "lag") {
    entry(lagColour(0), "unknown");
    const ramp = element("canvas", { width: 120, height: 1, "aria-hidden": "true" });
    const g = ramp.getContext("2d");
    for (let x = 0; x < 120; x++) {
      g.fillStyle = css(lagColour(1 + Math.round((x / 119) * 21)));
      g.fillRect(x, 0, 1, 1);
    }
    made.append(element("span", {}, "0", ramp, "1M messages behind"));
  } else {
    for (const index of [1, 2, 3]) {
      const square = element("i");
      square.style.background = css(clientColour(index));
      made.append(square);
    }
    made.append(element("span", { text: "a colour for each client" }));
    entry(live[FREE], "free");
  }
  return made;
}

export function choice(name, options, value, change) {
  const made = element("div", { class: "choice", role: "group", "aria-label": name });
  for (const [key, text] of options) {
    made.append(element("button", {
      type: "button", text, "aria-pressed": String(key === value), onclick: () => change(key),
    }));
  }
  return made;
}

export const MODES = [["live", "Liveness"], ["holder", "Holder"], ["lag", "Lag"]];

export class Cards {
  constructor(context) {
    this.context = context;
    this.cards = new Map();
    this.root = element("div");
    this.head = element("div");
    this.grid = element("div", { class: "cards" });
    this.root.append(element("h1", { class: "unseen", text: "Groups" }), this.head, this.grid);
    this.inSight = new Set();
    this.sight = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        if (isIntersecting) this.inSight.add(target);
        else this.inSight.delete(target);
      }
      this.draw();
    }, { rootMargin: "200px" });
    this.resized = new ResizeObserver(() => this.draw(true));
    this.resized.observe(this.grid);
  }

  close() {
    this.sight.disconnect();
    this.resized.disconnect();
  }

  groups() {
    const { model, filter } = this.context;
    const found = new Map();
    for (const group of model().groups) found.set(group.group, []);
    for (const row of model().rows.values()) {
      if (!found.has(row.group)) found.set(row.group, []);
      found.get(row.group).push(row);
    }
    const text = filter().toLowerCase();
    if (!text) return found;
    const clients = new Set();
    model().clients.forEach((name, index) => name.toLowerCase().includes(text) && clients.add(index));
    for (const [group, rows] of found) {
      const fits = group.toLowerCase().includes(text)
        || rows.some((row) => row.topic.toLowerCase().includes(text))
        || rows.some((row) => clients.size && [...row.byHolder().keys()].some((holder) => clients.has(holder)));
      if (!fits) found.delete(group);
    }
    return found;
  }

  update() {
    const { model, mode, setMode, sort, setSort } = this.context;
    const groups = this.groups();
    const summaries = new Map([...groups].map(([group, rows]) => [group, model().summary(group, rows)]));
    const sum = (of) => [...summaries.values()].reduce((total, s) => total + of(s), 0);
    const stale = sum((s) => s.stale), unknown = sum((s) => s.unknown), free = sum((s) => s.free);
    const lags = [...summaries.values()].filter((s) => s.lag != null);
    const lag = lags.length ? sum((s) => s.lag ?? 0) : null, lagUnknown = sum((s) => s.lagUnknown);
    const heading = JSON.stringify([mode(), sort(), summaries.size, sum((s) => s.partitions), stale, unknown, free,
      sum((s) => s.members), lag, lagUnknown, matchMedia("(prefers-color-scheme: dark)").matches]);
    if (heading !== this.heading) {
      this.heading = heading;
      const focused = this.head.contains(document.activeElement) ? document.activeElement.textContent : null;
      this.head.replaceChildren(
        figures([
          ["groups", whole(summaries.size)],
          ["partitions", whole(sum((s) => s.partitions))],
          ["held", whole(sum((s) => s.held))],
          ["stale", whole(stale), stale ? "bad" : null],
          ["unknown", whole(unknown), unknown ? "odd" : null],
          ["free", whole(free)],
          ["members", whole(sum((s) => s.members))],
          lag == null && !lagUnknown ? null : ["messages behind", behind(lag, lagUnknown), lagUnknown ? "odd" : null],
        ]),
        element("div", { class: "tools" },
          choice("Colour by", MODES, mode(), setMode),
          legend(mode()),
          element("div", { class: "right" },
            choice("Sort by", [["worst", "Worst first"], ["name", "Name"], ["lag", "Lag"]], sort(), setSort))));
      if (focused) [...this.head.querySelectorAll("button")].find((b) => b.textContent === focused)?.focus();
    }
    const names = [...groups.keys()];
    const by = {
      name: (a, b) => (a < b ? -1 : 1),
      worst: (a, b) => {
        const x = summaries.get(a), y = summaries.get(b);
        return (y.stale > 0) - (x.stale > 0) || (y.pausedUntil != null) - (x.pausedUntil != null) || (a < b ? -1 : 1);
      },
      lag: (a, b) => (summaries.get(b).lag ?? -1) - (summaries.get(a).lag ?? -1) || (a < b ? -1 : 1),
    }[sort()];
    names.sort(by);
    this.grid.classList.toggle("few", names.length <= 6);
    for (const [group, card] of this.cards) {
      if (!groups.has(group)) {
        this.sight.unobserve(card.root);
        this.inSight.delete(card.root);
        card.root.remove();
        this.cards.delete(group);
      }
    }
    names.forEach((group, index) => {
      let card = this.cards.get(group);
      if (!card) this.cards.set(group, (card = this.make(group)));
      if (this.grid.children[index] !== card.root) this.grid.insertBefore(card.root, this.grid.children[index] ?? null);
      card.rows = groups.get(group).sort((a, b) => a.leader - b.leader || (a.topic < b.topic ? -1 : 1));
      this.fill(card, summaries.get(group));
    });
    if (!names.length && !this.none) {
      this.none = element("p", { class: "empty" });
      this.grid.after(this.none);
    }
    if (this.none) {
      this.none.hidden = names.length > 0;
      this.none.textContent = this.context.filter() ? "No group, topic or client has that name." : "No group has claimed anything yet.";
    }
    this.draw();
  }

  make(group) {
    const canvas = element("canvas", { "aria-hidden": "true" });
    const pills = element("span", { class: "pills" });
    const footer = element("footer");
    const root = element("a", { class: "card", href: linkTo(group), dataset: { group } },
      element("header", {}, element("h2", { text: group, title: group }), pills), canvas, footer);
    this.sight.observe(root);
    return { group, root, canvas, pills, footer, rows: [], drawn: "", filled: "" };
  }

  fill(card, s) {
    const filled = JSON.stringify(s);
    if (filled === card.filled) return;
    card.filled = filled;
    const now = this.context.model().now();
    const pill = (kind, text) => element("span", { class: `pill ${kind}`, text });
    card.pills.replaceChildren(...[
      s.pausedUntil != null ? pill("paused", s.pausedUntil > now ? `paused until ${clock(s.pausedUntil).slice(0, 5)}` : "pause is over") : null,
      s.stale ? pill("stale", `${whole(s.stale)} stale`) : null,
    ].filter(Boolean));
    card.root.dataset.worst = s.stale ? "stale" : "";
    card.footer.replaceChildren(
      element("span", { text: plural(s.members, "member") }),
      element("span", { text: s.free ? `${whole(s.free)} free` : `${whole(s.held)} held` }),
      element("span", { text: s.lag == null && !s.lagUnknown ? "" : `lag ${behind(s.lag, s.lagUnknown)}` }));
  }

  // Draws what is in sight and has changed.
  draw(all = false) {
    const mode = this.context.mode();
    const { past, shape } = this.context.model();
    for (const card of this.cards.values()) {
      if (!this.inSight.has(card.root)) continue;
      const drawn = `${mode} ${past} ${shape} ${theme().ink} ${card.rows.map((row) => `${row.number}:${row.version}`).join()} ${card.canvas.clientWidth}`;
      if (!all && drawn === card.drawn && card.of === this.context.model()) continue;
      card.drawn = drawn;
      card.of = this.context.model();
      drawMini(card.canvas, card.rows, mode);
    }
  }
}
