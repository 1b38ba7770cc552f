// The heat map: one square for each partition, on a canvas. Small ones for cards, a large one that
// can be walked with the pointer and the arrow keys.

import { LIVENESS, STALE, UNKNOWN, css, lagText, painter, theme } from "./colour.js";
import { plural } from "./format.js";

const scratch = document.createElement("canvas");

// One pixel a cell, on a canvas that is only drawn from.
function pixels(row, columns, paint) {
  const order = row.inOrder();
  const lines = Math.max(1, Math.ceil(order.length / columns));
  scratch.width = columns;
  scratch.height = lines;
  const context = scratch.getContext("2d", { willReadFrequently: true });
  const image = context.createImageData(columns, lines);
  const data = image.data;
  for (let i = 0; i < order.length; i++) {
    const colour = paint(row, order[i]);
    const at = 4 * i;
    data[at] = colour[0];
    data[at + 1] = colour[1];
    data[at + 2] = colour[2];
    data[at + 3] = 255;
  }
  context.putImageData(image, 0, 0);
  return lines;
}

// Round numbers at the beginning of a line are easier to find one's way by.
const roundColumns = (columns) =>
  columns - (columns % (columns >= 200 ? 50 : columns >= 100 ? 20 : columns >= 10 ? 10 : 1));

// Fills `canvas` with the rows of one group, as large as there is room for.
export function drawMini(canvas, rows, mode) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.round(canvas.clientWidth * ratio);
  const height = Math.round(canvas.clientHeight * ratio);
  if (!width || !height) return;
  if (canvas.width !== width || canvas.height !== height) {
    canvas.width = width;
    canvas.height = height;
  }
  const context = canvas.getContext("2d");
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = false;
  const paint = painter(mode);
  const total = rows.reduce((sum, row) => sum + row.partitions.length, 0);
  if (!total) return;
  const gap = rows.length > 1 ? 3 * ratio : 0;
  // The largest square that lets all of them in.
  let size = Math.floor(Math.min(24 * ratio, Math.sqrt((width * height) / total)));
  const needs = (s) =>
    rows.reduce((sum, r) => sum + Math.ceil(r.partitions.length / Math.floor(width / s)) * s + gap, -gap);
  while (size > 1 && needs(size) > height) size--;
  size = Math.max(1, size);
  let columns = Math.floor(width / size);
  // Squares of some size may be stretched a little, so that all maps fill their cards; of tiny ones,
  // a round number makes a line, so that the last one is seldom cut off.
  const stretched = total >= columns;
  if (stretched && size > 1 && size < 5) columns = roundColumns(columns);
  const linesInAll = rows.reduce((sum, row) => sum + Math.ceil(row.partitions.length / columns), 0);
  const cell = stretched ? (width + (size >= 5 ? 1 : 0)) / columns : size;
  const room = height + (size >= 5 ? 1 : 0) - gap * (rows.length - 1);
  const tall = stretched ? Math.min(cell * 1.3, room / linesInAll) : size;
  let y = 0;
  for (const row of rows) {
    const wide = Math.min(columns, row.partitions.length);
    const lines = pixels(row, wide, paint);
    context.drawImage(scratch, 0, 0, wide, lines, 0, y, wide * cell, lines * tall);
    if (size >= 4) grid(context, y, wide, lines, cell, tall, Math.max(1, Math.round(size / 11)));
    y += lines * tall + gap;
  }
}

function grid(context, y, columns, lines, width, height, thick) {
  context.fillStyle = css(theme().grid);
  for (let c = 1; c <= columns; c++) {
    context.fillRect(Math.round(c * width) - thick, y, thick, lines * height);
  }
  for (let l = 1; l <= lines; l++) {
    context.fillRect(0, Math.round(y + l * height) - thick, columns * width, thick);
  }
}

const SIZES = [26, 22, 18, 16, 14, 12, 10, 8, 7, 6, 5, 4, 3];
const LABELS = 46; // room for partition numbers, left of the map

export class HeatMap {
  // `pick(partition)` is called when a cell is chosen, `hover(partition | null)` when pointed at.
  constructor(frame, { pick, hover, say }) {
    this.frame = frame;
    this.canvas = document.createElement("canvas");
    this.canvas.setAttribute("aria-hidden", "true");
    this.frame.append(this.canvas);
    this.frame.tabIndex = 0;
    this.frame.setAttribute("role", "application");
    this.frame.setAttribute("aria-roledescription", "heat map");
    this.pick = pick;
    this.hover = hover;
    this.say = say;
    this.row = null;
    this.chosen = null;
    this.pointed = null;
    this.client = 0;
    this.mode = "live";
    this.maxHeight = 460;
    this.canvas.addEventListener("pointermove", (event) => this.point(this.at(event)));
    this.canvas.addEventListener("pointerleave", () => this.point(null));
    this.canvas.addEventListener("click", (event) => {
      const partition = this.at(event);
      if (partition != null) this.choose(partition);
    });
    this.frame.addEventListener("keydown", (event) => this.onKey(event));
  }

  show(row, mode, clients) {
    this.row = row;
    this.mode = mode;
    this.clients = clients;
    this.draw();
  }

  layout() {
    const style = getComputedStyle(this.frame);
    const padding = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
    const width = Math.max(120, this.frame.clientWidth - padding - LABELS);
    const n = this.row.partitions.length;
    let columns = 1, size = SIZES[0];
    for (size of SIZES) {
      columns = roundColumns(Math.max(1, Math.floor(width / size)));
      size = Math.max(size, Math.min(30, Math.floor(width / columns)));
      if (Math.ceil(n / columns) * size <= this.maxHeight) break;
    }
    this.size = size;
    this.columns = columns;
    this.lines = Math.max(1, Math.ceil(n / columns));
  }

  draw() {
    if (!this.row || !this.frame.clientWidth) return;
    this.layout();
    const { size, columns, lines, row } = this;
    const ratio = window.devicePixelRatio || 1;
    const wide = Math.min(columns, row.partitions.length || 1);
    const width = LABELS + wide * size, height = lines * size;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const context = this.canvas.getContext("2d");
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    pixels(row, columns, painter(this.mode));
    context.drawImage(scratch, 0, 0, wide, lines, LABELS, 0, wide * size, lines * size);
    if (size >= 4) {
      context.save();
      context.translate(LABELS, 0);
      grid(context, 0, wide, lines, size, size, size >= 10 ? 2 : 1);
      context.restore();
    }
    this.marks(context);
    this.numbers(context);
    this.frame.setAttribute("aria-label", this.summary());
  }

  // What is not well is told by more than its colour.
  marks(context) {
    const { row, size } = this;
    const order = row.inOrder();
    context.strokeStyle = context.fillStyle = theme().ink;
    context.lineWidth = Math.max(1, size / 10);
    for (let i = 0; i < order.length; i++) {
      const slot = order[i];
      const [x, y] = this.corner(i);
      const inner = size - (size >= 10 ? 2 : 1);
      if (size >= 11 && this.mode === "live") {
        if (row.live[slot] === STALE) {
          context.beginPath();
          context.moveTo(x + inner * 0.28, y + inner * 0.28);
          context.lineTo(x + inner * 0.72, y + inner * 0.72);
          context.moveTo(x + inner * 0.72, y + inner * 0.28);
          context.lineTo(x + inner * 0.28, y + inner * 0.72);
          context.stroke();
        } else if (row.live[slot] === UNKNOWN) {
          context.fillRect(x + inner * 0.4, y + inner * 0.4, inner * 0.2, inner * 0.2);
        }
      }
      if (this.client && row.holders[slot] !== this.client) {
        context.save();
        context.globalAlpha = 0.78;
        context.fillStyle = css(theme().grid);
        context.fillRect(x, y, size, size);
        context.restore();
      }
    }
    const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent");
    for (const [partition, thick] of [[this.pointed, 1], [this.chosen, 2]]) {
      const index = this.indexOf(partition);
      if (index < 0) continue;
      const [x, y] = this.corner(index);
      context.strokeStyle = accent;
      context.lineWidth = thick;
      const inner = size - (size >= 10 ? 2 : size >= 4 ? 1 : 0);
      context.strokeRect(x - 0.5, y - 0.5, inner + 1, inner + 1);
    }
  }

  numbers(context) {
    const { row, size, columns, lines } = this;
    const order = row.inOrder();
    const style = getComputedStyle(document.documentElement);
    context.font = `10.5px ${style.getPropertyValue("--mono")}`;
    context.textAlign = "right";
    context.textBaseline = "middle";
    context.fillStyle = style.getPropertyValue("--dim");
    const every = Math.max(1, Math.ceil(13 / size));
    for (let line = 0; line < lines; line += every) {
      const first = row.partitions[order[line * columns]];
      context.fillText(String(first), LABELS - 8, Math.max(6, line * size + size / 2));
    }
  }

  corner(index) {
    return [
      LABELS + (index % this.columns) * this.size,
      Math.floor(index / this.columns) * this.size,
    ];
  }

  // Where a partition is drawn, in CSS pixels of the canvas: for tests.
  rectOf(partition) {
    const index = this.indexOf(partition);
    if (index < 0) return null;
    const [x, y] = this.corner(index);
    return { x, y, size: this.size };
  }

  indexOf(partition) {
    if (partition == null || !this.row) return -1;
    const slot = this.row.slotOf.get(partition);
    return slot === undefined ? -1 : this.row.inOrder().indexOf(slot);
  }

  at(event) {
    if (!this.row) return null;
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - LABELS) / this.size);
    const line = Math.floor((event.clientY - box.top) / this.size);
    const order = this.row.inOrder();
    const index = line * this.columns + column;
    if (column < 0 || column >= this.columns || index < 0 || index >= order.length) return null;
    return this.row.partitions[order[index]];
  }

  point(partition) {
    if (partition === this.pointed) return;
    this.pointed = partition;
    this.draw();
    this.hover(partition);
  }

  choose(partition) {
    this.chosen = partition;
    this.draw();
    this.say(this.describe(partition));
    this.pick(partition);
  }

  onKey(event) {
    if (!this.row) return;
    const order = this.row.inOrder();
    const step = {
      ArrowRight: 1,
      ArrowLeft: -1,
      ArrowDown: this.columns,
      ArrowUp: -this.columns,
      PageDown: 10 * this.columns,
      PageUp: -10 * this.columns,
      Home: -Infinity,
      End: Infinity,
    }[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const now = this.indexOf(this.chosen);
    const next = now < 0 ? 0 : Math.min(order.length - 1, Math.max(0, now + step));
    this.choose(this.row.partitions[order[next]]);
  }

  describe(partition) {
    const { row } = this;
    const slot = row.slotOf.get(partition);
    if (slot === undefined) return "";
    const holder = row.holders[slot];
    const lag = row.lag[slot] ? `, lag ${lagText(row.lag[slot])}` : "";
    if (!holder) return `partition ${partition}: held by nobody${lag}`;
    return `partition ${partition}: ${this.clients[holder]}, ${LIVENESS[row.live[slot]]}${lag}`;
  }

  summary() {
    const [free, fresh, unknown, stale] = this.row.count();
    return (
      `${this.row.topic} of ${this.row.group}: ${plural(this.row.partitions.length, "partition")}, ` +
      `${fresh} fresh, ${unknown} unknown, ${stale} stale, ${free} free. ` +
      "Arrow keys go from partition to partition."
    );
  }
}
