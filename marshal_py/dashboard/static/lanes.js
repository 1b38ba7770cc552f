// The timeline: a lane for each partition, a bar for each claim. Zoom with the wheel and Ctrl, with
// + and −; pull with the pointer; arrow keys move the cursor.

import { ticks } from "./axis.js";
import { clientColour, css, strangerNumber, theme } from "./colour.js";
import { age, clock, moment, visible } from "./format.js";

const LABEL = 60, AXIS = 24, LANE = 18, BAR = 12;
const SHORTEST_MS = 50; // the closest that one may look
const CLOSE_MS = 20_000; // who looks so closely sees milliseconds
const AT_FIRST_MS = 2_000; // the least that is shown before anybody has zoomed

export class Lanes {
  // `pick(partition, at)`: a cell at a moment was chosen; `travel(at)`: show everything as it was.
  constructor({ frame, scroller, canvas, spacer, told, pick, travel }) {
    Object.assign(this, { frame, scroller, canvas, spacer, told, pick, travel });
    this.data = null;
    this.cursor = null; // {lane, at}
    this.pointed = null;
    this.following = true; // the right edge is now
    this.span = null;
    this.end = null;
    this.names = new Map();
    scroller.addEventListener("scroll", () => this.later());
    canvas.addEventListener("wheel", (event) => this.onWheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.onDown(event));
    canvas.addEventListener("pointermove", (event) => this.onMove(event));
    canvas.addEventListener("pointerup", (event) => this.onUp(event));
    canvas.addEventListener("pointerleave", () => {
      this.pointed = null;
      this.later();
    });
    scroller.tabIndex = 0;
    scroller.addEventListener("keydown", (event) => this.onKey(event));
  }

  // `model` is the live one; `at` is the moment that the rest of the page shows, null: now.
  show(data, model, at = null) {
    this.data = data;
    this.model = model;
    this.moment = at;
    this.names.clear();
    model.clients.forEach((name, index) => this.names.set(name, index));
    this.spacer.style.height = `${AXIS + data.lanes.length * LANE + 8}px`;
    if (this.span == null) this.fit();
    this.later();
  }

  clear() {
    this.data = null;
    this.span = null;
    this.cursor = null;
    this.following = true;
  }

  fit() {
    const now = this.model.now();
    let first = now - 60_000;
    for (const lane of this.data.lanes) {
      for (const [, from] of lane.bars) {
        if (from != null) first = Math.min(first, this.data.start + from);
      }
    }
    this.following = true;
    this.end = now;
    this.span = Math.max(AT_FIRST_MS, (now - Math.max(first, this.data.start)) * 1.04);
    this.later();
  }

  last(ms) {
    this.following = true;
    this.span = ms;
    this.later();
  }

  zoom(factor, at = null) {
    const to = this.to();
    const fixed = at ?? (this.cursor ? this.cursor.at : to);
    const span = Math.max(SHORTEST_MS, Math.min(this.span * factor, this.longest()));
    const end = fixed + ((to - fixed) * span) / this.span;
    this.span = span;
    this.setEnd(end);
  }

  longest() {
    return Math.max(120_000, (this.model.now() - this.data.start) * 1.1);
  }

  setEnd(end) {
    const now = this.model.now();
    this.end = Math.max(this.data.start + this.span * 0.2, Math.min(end, now + this.span * 0.02));
    this.following = this.end >= now;
    this.later();
  }

  to() {
    return this.following ? this.model.now() : this.end;
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  x(at) {
    return LABEL + ((at - (this.to() - this.span)) / this.span) * (this.width - LABEL);
  }

  time(x) {
    return this.to() - this.span + ((x - LABEL) / (this.width - LABEL)) * this.span;
  }

  draw() {
    const { data, canvas, scroller } = this;
    if (!data || !scroller.clientWidth) return;
    const ratio = window.devicePixelRatio || 1;
    this.width = scroller.clientWidth;
    const height = scroller.clientHeight;
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(this.width * ratio);
    canvas.height = Math.round(height * ratio);
    const g = canvas.getContext("2d");
    g.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name);
    const to = this.to(), from = to - this.span;
    g.font = `10.5px ${colour("--mono")}`;
    g.textBaseline = "middle";

    // Before the history nothing is known.
    const known = this.x(Math.max(data.known_from, data.start));
    if (known > LABEL) {
      g.fillStyle = colour("--sunken");
      g.fillRect(LABEL, AXIS, Math.min(known, this.width) - LABEL, height);
    }
    g.fillStyle = colour("--line");
    const marks = ticks(from, to, Math.max(2, (this.width - LABEL) / 90));
    for (const [t] of marks) g.fillRect(Math.round(this.x(t)), AXIS, 1, height);

    const first = Math.max(0, Math.floor(scroller.scrollTop / LANE));
    const count = Math.ceil(height / LANE) + 1;
    const y0 = AXIS - (scroller.scrollTop % LANE);
    g.save();
    g.beginPath();
    g.rect(0, AXIS, this.width, height - AXIS);
    g.clip();
    for (let i = 0; i < count; i++) {
      const lane = data.lanes[first + i];
      if (lane) this.lane(g, lane, y0 + i * LANE, from, to, colour, first + i);
    }
    this.cursors(g, y0, first, height, colour);
    g.restore();

    g.fillStyle = colour("--panel");
    g.fillRect(0, 0, this.width, AXIS);
    g.fillStyle = colour("--dim");
    g.textAlign = "center";
    for (const [t, text] of marks) {
      const x = this.x(t);
      if (x > LABEL + 24 && x < this.width - 24) g.fillText(text, x, AXIS / 2);
    }
    g.fillStyle = colour("--line");
    g.fillRect(0, AXIS - 1, this.width, 1);
    clearTimeout(this.followed);
    if (this.following) this.followed = setTimeout(() => this.following && this.later(), 1_000);
  }

  lane(g, lane, y, from, to, colour, index) {
    const { data } = this;
    const chosen = this.cursor?.lane === index;
    if (chosen) {
      g.fillStyle = colour("--raised");
      g.fillRect(0, y, this.width, LANE);
    }
    g.fillStyle = chosen ? colour("--text") : colour("--dim");
    g.textAlign = "right";
    g.fillText(String(lane.partition), LABEL - 10, y + LANE / 2);
    const top = y + (LANE - BAR) / 2;
    for (const [client, began, until, how, last, interval] of lane.bars) {
      const start = began == null ? data.start : data.start + began;
      const end = until == null ? Math.max(to, this.model.now()) : data.start + until;
      if (end < from || start > to) continue;
      const x1 = Math.max(LABEL, this.x(start)), x2 = Math.min(this.width, this.x(end));
      if (x2 < LABEL) continue;
      const paint = css(clientColour(this.names.get(data.clients[client]) ?? strangerNumber(data.clients[client])));
      g.fillStyle = paint;
      const width = Math.max(1.5, x2 - x1 - (until == null ? 0 : 1));
      g.fillRect(x1, top, width, BAR);
      // Its lease had run out from here on.
      const lapsed = last == null ? null : data.start + last + 2 * interval;
      const silentUntil = until == null ? this.model.now() : end;
      if (lapsed != null && lapsed < silentUntil && (how === "taken_over" || how == null)) {
        this.hatch(g, Math.max(x1, this.x(lapsed)), Math.min(x2, this.x(silentUntil)), top, colour);
      }
      if (how === "taken_over" && x2 < this.width) {
        g.fillStyle = css(theme().live[3]);
        g.beginPath();
        g.moveTo(x2 - 4, y + 1);
        g.lineTo(x2 + 4, y + 1);
        g.lineTo(x2, y + 7);
        g.fill();
      }
    }
    g.fillStyle = css(theme().live[3]);
    for (const [at] of lane.marks) {
      const x = this.x(data.start + at);
      if (x < LABEL || x > this.width) continue;
      g.beginPath();
      g.arc(x, y + LANE - 3, 2, 0, 7);
      g.fill();
    }
  }

  hatch(g, x1, x2, top, colour) {
    if (x2 - x1 < 1) return;
    g.save();
    g.beginPath();
    g.rect(x1, top, x2 - x1, BAR);
    g.clip();
    g.fillStyle = colour("--panel");
    g.globalAlpha = 0.72;
    g.fillRect(x1, top, x2 - x1, BAR);
    g.globalAlpha = 1;
    g.strokeStyle = css(theme().live[3]);
    g.lineWidth = 1;
    for (let x = x1 - BAR; x < x2; x += 5) {
      g.beginPath();
      g.moveTo(x, top + BAR);
      g.lineTo(x + BAR, top);
      g.stroke();
    }
    g.restore();
  }

  cursors(g, y0, first, height, colour) {
    const line = (at, alpha) => {
      const x = Math.round(this.x(at)) + 0.5;
      if (x < LABEL) return;
      g.save();
      g.globalAlpha = alpha;
      g.strokeStyle = colour("--accent");
      g.beginPath();
      g.moveTo(x, AXIS);
      g.lineTo(x, height);
      g.stroke();
      g.restore();
    };
    if (this.pointed) line(this.pointed.at, 0.4);
    if (this.cursor) line(this.cursor.at, 1);
    if (this.moment != null) line(this.moment, 1);
  }

  place(event) {
    const box = this.canvas.getBoundingClientRect();
    const x = event.clientX - box.left, y = event.clientY - box.top;
    if (x < LABEL || y < AXIS || !this.data) return null;
    const lane = Math.floor((y - AXIS + this.scroller.scrollTop % LANE) / LANE)
      + Math.floor(this.scroller.scrollTop / LANE);
    if (lane >= this.data.lanes.length) return null;
    return { lane, at: Math.min(this.time(x), this.model.now()) };
  }

  onWheel(event) {
    if (!this.data || (!event.ctrlKey && !event.metaKey && !event.shiftKey && !event.deltaX)) return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) {
      const at = this.place(event)?.at ?? null;
      this.zoom(Math.exp(event.deltaY * 0.003), at);
    } else {
      const by = event.deltaX || event.deltaY;
      this.setEnd(this.to() + (by / (this.width - LABEL)) * this.span);
    }
  }

  onDown(event) {
    if (!this.data) return;
    this.pull = { x: event.clientX, end: this.to(), moved: false };
    this.canvas.setPointerCapture(event.pointerId);
  }

  onMove(event) {
    if (this.pull) {
      const by = event.clientX - this.pull.x;
      if (Math.abs(by) > 4) this.pull.moved = true;
      if (this.pull.moved) this.setEnd(this.pull.end - (by / (this.width - LABEL)) * this.span);
    }
    this.pointed = this.place(event);
    if (this.pointed) this.told.textContent = visible(this.describe(this.pointed));
    this.later();
  }

  onUp(event) {
    const pull = this.pull;
    this.pull = null;
    const place = this.place(event);
    if (pull && !pull.moved && place) this.go(place);
  }

  go(place) {
    this.cursor = place;
    this.told.textContent = visible(this.describe(place));
    this.later();
    this.pick(this.data.lanes[place.lane].partition, Math.round(place.at));
  }

  onKey(event) {
    if (!this.data || event.metaKey || event.altKey || event.ctrlKey) return;
    const far = event.shiftKey ? 10 : 1;
    const now = this.cursor ?? { lane: 0, at: this.model.now() };
    const move = {
      ArrowLeft: [0, -this.span / 100],
      ArrowRight: [0, this.span / 100],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
    }[event.key];
    if (move) {
      const lane = Math.max(0, Math.min(this.data.lanes.length - 1, now.lane + move[0] * far));
      const at = Math.max(this.data.start, Math.min(this.model.now(), now.at + move[1] * far));
      this.reveal(lane, at);
      this.go({ lane, at });
    } else if (event.key === "+" || event.key === "=") this.zoom(0.7);
    else if (event.key === "-") this.zoom(1.4);
    else if (event.key === "0") this.fit();
    else if (event.key === "Enter" && this.cursor) this.travel(Math.round(this.cursor.at));
    else return;
    event.preventDefault();
  }

  reveal(lane, at) {
    const top = lane * LANE, room = this.scroller.clientHeight - AXIS - LANE;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    else if (top > this.scroller.scrollTop + room) this.scroller.scrollTop = top - room;
    if (at < this.to() - this.span) this.setEnd(at + this.span * 0.9);
    else if (at > this.to()) this.setEnd(at + this.span * 0.1);
  }

  choose(partition) {
    const lane = this.data?.lanes.findIndex((l) => l.partition === partition) ?? -1;
    if (lane < 0 || this.cursor?.lane === lane) return;
    this.cursor = { lane, at: this.cursor?.at ?? this.model.now() };
    this.reveal(lane, this.cursor.at);
    this.later();
  }

  describe({ lane, at }) {
    const { partition, bars } = this.data.lanes[lane];
    const when = `partition ${partition} at ${moment(at, undefined, this.span < CLOSE_MS)}`;
    const bar = bars.find(([, from, until]) =>
      (from == null || this.data.start + from <= at) && (until == null || at < this.data.start + until));
    if (!bar) return `${when}: held by nobody${at < this.data.known_from ? ", as far as was read" : ""}`;
    const [client, from, until, how, , , epoch] = bar;
    const since = from == null ? "since before the history" : `since ${clock(this.data.start + from)}`;
    const ended = until == null ? "" : `, until ${clock(this.data.start + until)} (${how.replace("_", " ")})`;
    const length = from == null ? "" : `, ${age((until ?? at - this.data.start) - from)}`;
    return `${when}: ${this.data.clients[client]} ${since}${ended}${length}${epoch >= 0 ? `, epoch ${epoch}` : ""}`;
  }
}
