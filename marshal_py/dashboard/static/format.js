// Times, ages and numbers as people read them.

const pad = (n, width = 2) => String(n).padStart(width, "0");

export function clock(ms, withMillis = false) {
  if (ms == null) return "–";
  const d = new Date(ms);
  const text = `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  return withMillis ? `${text}.${pad(d.getMilliseconds(), 3)}` : text;
}

export function day(ms) {
  const d = new Date(ms);
  return `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())}`;
}

// With the day where it is not the one of `now`.
export function moment(ms, now = Date.now(), withMillis = false) {
  if (ms == null) return "–";
  const time = clock(ms, withMillis);
  return day(ms) === day(now) ? time : `${day(ms)} ${time}`;
}

export function age(ms) {
  if (ms == null) return "–";
  const steps = [
    [1_000, 1, "ms"],
    [60_000, 1_000, "s"],
    [3_600_000, 60_000, "min"],
    [172_800_000, 3_600_000, "h"],
    [Infinity, 86_400_000, "d"],
  ];
  const [, unit, name] = steps.find(([limit]) => Math.abs(ms) < limit);
  const value = ms / unit;
  return `${value.toFixed(Math.abs(value) < 10 && unit > 1 ? 1 : 0)} ${name}`;
}

export const whole = (n) => (n == null ? "–" : n.toLocaleString("en"));

export function short(n) {
  if (n == null) return "–";
  for (const [limit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (n >= limit) return `${(n / limit).toFixed(n < 10 * limit ? 1 : 0)}${name}`;
  }
  return String(n);
}

// How far somebody is behind; `unknown`: of so many partitions it is not known.
export const behind = (lag, unknown) => (!unknown ? short(lag) : lag == null ? "unknown" : `at least ${short(lag)}`);

export const plural = (n, what) => `${whole(n)} ${what}${n === 1 ? "" : "s"}`;

// What somebody types into "go to": 02:13, 02:13:30, 2026-11-21 02:13, 10m (ago).
export function parseMoment(text, now) {
  text = text.trim();
  const ago = /^-?(\d+(?:\.\d+)?)\s*(s|m|min|h|d)(?: ago)?$/.exec(text);
  if (ago) {
    const unit = { s: 1e3, m: 6e4, min: 6e4, h: 36e5, d: 864e5 }[ago[2]];
    return Math.round(now - Number(ago[1]) * unit);
  }
  const time = /^(?:(\d{4})-(\d\d)-(\d\d)[ T])?(\d{1,2}):(\d\d)(?::(\d\d)(?:\.(\d{1,3}))?)?$/.exec(text);
  if (!time) return null;
  const [, year, month, date, hours, minutes, seconds = "0", millis = "0"] = time;
  const d = new Date(now);
  if (year) d.setFullYear(Number(year), Number(month) - 1, Number(date));
  d.setHours(Number(hours), Number(minutes), Number(seconds), Number(millis.padEnd(3, "0")));
  // A time of day that is yet to come was yesterday's.
  if (!year && d.getTime() > now) d.setDate(d.getDate() - 1);
  return Number.isNaN(d.getTime()) ? null : d.getTime();
}

// What strangers wrote, with an escape for each character that shows nothing, or rearranges what is
// beside it: control characters, bidirectional overrides, line separators, halves of characters.
export const visible = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, (character) => {
  const hex = character.codePointAt(0).toString(16);
  return hex.length > 4 ? `\\U${hex.padStart(8, "0")}` : hex.length > 2 ? `\\u${hex.padStart(4, "0")}` : `\\x${hex.padStart(2, "0")}`;
});

const SHOWN = new Set(["title", "aria-label", "placeholder", "alt"]);

// All text that the page shows gets into it here, or through `visible`.
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value == null || value === false) continue;
    if (name === "text") made.textContent = visible(value);
    else if (name === "dataset") Object.assign(made.dataset, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : SHOWN.has(name) ? visible(value) : value);
  }
  made.append(...children.filter((child) => child != null).map((child) => (child instanceof Node ? child : visible(child))));
  return made;
}
