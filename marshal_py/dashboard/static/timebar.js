// The time bar: how much happened when, and a handle that takes the whole page to any moment of it.

import { ticks } from "./axis.js";
import { css, theme } from "./colour.js";
import { moment, parseMoment } from "./format.js";

export class TimeBar {
  // `travel(ms | null)`: show the world at a moment; null: live.
  constructor(root, { travel, now, from }) {
    this.canvas = root.querySelector("canvas");
    this.range = root.querySelector("input[type=range]");
    this.form = root.querySelector("form");
    this.input = this.form.querySelector("input");
    this.live = root.querySelector(".to-live");
    this.note = root.querySelector(".told");
    this.travel = travel;
    this.now = now;
    this.from = from;
    this.at = null;
    this.window = [0, 1];
    this.bins = null;
    this.range.addEventListener("input", () => this.onRange());
    this.range.addEventListener("change", () => this.onRange(true));
    this.live.addEventListener("click", () => travel(null));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const at = parseMoment(this.input.value, now());
      if (at == null || at > now()) {
        this.note.textContent = "a time such as 02:13, 2026-11-21 02:13 or 10m (ago)";
        this.input.setAttribute("aria-invalid", "true");
        return;
      }
      this.input.removeAttribute("aria-invalid");
      travel(at);
    });
  }

  onRange(done = false) {
    const [from, to] = this.window;
    const share = Number(this.range.value) / Number(this.range.max);
    clearTimeout(this.timer);
    if (share >= 0.999) {
      this.travel(null);
      return;
    }
    this.at = Math.round(from + (to - from) * share);
    this.tell();
    this.draw();
    this.timer = setTimeout(() => this.travel(this.at), done ? 0 : 160);
  }

  set(at) {
    this.at = at;
    this.live.hidden = at == null;
    if (at == null) this.input.value = "";
    this.update();
  }

  update() {
    // While somebody looks at the past the bar stands still.
    if (this.at == null || this.at < this.window[0]) {
      const to = this.now();
      const from = Math.min(this.from() || to - 3_600_000, this.at ?? Infinity);
      this.window = [from - (this.at != null && this.at <= from ? 60_000 : 0), to];
    }
    const [from, to] = this.window;
    const share = this.at == null ? 1 : (this.at - from) / (to - from);
    this.range.value = String(Math.round(share * Number(this.range.max)));
    this.tell();
    this.draw();
  }

  tell() {
    const text = this.at == null ? "live" : moment(this.at, this.now());
    this.range.setAttribute("aria-valuetext", text);
    this.note.textContent = this.at == null ? "" : `as it was at ${text}`;
  }

  show(strip) {
    this.bins = strip;
    this.draw();
  }

  draw() {
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight;
    if (!width) return;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const g = this.canvas.getContext("2d");
    g.scale(ratio, ratio);
    const style = getComputedStyle(document.documentElement);
    const [from, to] = this.window;
    const x = (t) => ((t - from) / (to - from)) * width;
    g.font = `10.5px ${style.getPropertyValue("--mono")}`;
    g.textBaseline = "alphabetic";
    g.fillStyle = style.getPropertyValue("--dim");
    for (const [t, text] of ticks(from, to, width / 110)) {
      g.fillRect(Math.round(x(t)), height - 14, 1, 3);
      if (x(t) > 20 && x(t) < width - 28) {
        g.textAlign = "center";
        g.fillText(text, x(t), height - 1);
      }
    }
    if (this.bins) this.bars(g, x, height - 15, style);
    g.fillStyle = style.getPropertyValue("--line");
    g.fillRect(0, height - 15, width, 1);
    if (this.at != null) {
      g.fillStyle = style.getPropertyValue("--accent");
      g.fillRect(Math.round(x(this.at)) - 1, 0, 2, height - 14);
      g.globalAlpha = 0.1;
      g.fillRect(x(this.at), 0, width - x(this.at), height - 15);
      g.globalAlpha = 1;
    }
  }

  bars(g, x, base, style) {
    const { start, end, bins } = this.bins;
    const each = (end - start) / bins[0].length;
    const totals = bins[0].map((_, i) => bins.reduce((sum, kind) => sum + kind[i], 0));
    const most = Math.max(1, ...totals);
    const live = theme().live;
    const colours = [css(live[3]), css(live[2]), style.getPropertyValue("--calm"), style.getPropertyValue("--faint")];
    // Few events must be seen beside many: the height is the square root.
    totals.forEach((total, i) => {
      if (!total) return;
      const left = x(start + i * each), right = x(start + (i + 1) * each);
      let y = base;
      for (const kind of [3, 2, 1, 0]) {
        const n = bins[kind][i];
        if (!n) continue;
        const tall = Math.max(1.5, (n / total) * Math.sqrt(total / most) * (base - 3));
        g.fillStyle = colours[kind];
        g.fillRect(left, y - tall, Math.max(1.5, right - left - 1), tall);
        y -= tall;
      }
    });
  }
}
