// A time axis: round moments, as many as there is room for.

import { clock, day } from "./format.js";

const STEPS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500,
  1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, 864e5,
];

export function ticks(from, to, room) {
  const step = STEPS.find((s) => (to - from) / s <= room) ?? 864e5 * Math.ceil((to - from) / room / 864e5);
  const zone = new Date(from).getTimezoneOffset() * 6e4;
  const found = [];
  for (let t = Math.ceil((from - zone) / step) * step + zone; t <= to; t += step) {
    const midnight = (t - zone) % 864e5 === 0;
    found.push([t, midnight ? day(t) : step < 6e4 ? clock(t, step < 1e3) : clock(t).slice(0, 5)]);
  }
  return found;
}
