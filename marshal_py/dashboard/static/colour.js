// Colours of cells. Most cells are well: they are calm, so that what is not well stands out.

export const FREE = 0, FRESH = 1, UNKNOWN = 2, STALE = 3;
export const LIVENESS = ["free", "fresh", "unknown", "stale"];

const linear = (c) => (c <= 0.0031308 ? 12.92 * c : 1.055 * c ** (1 / 2.4) - 0.055);
const byte = (c) => Math.round(255 * Math.min(1, Math.max(0, linear(c))));

// Oklch → [r, g, b]: equal steps look equal, so no client seems more important than another.
function oklch(L, C, hue) {
  const a = C * Math.cos((hue * Math.PI) / 180);
  const b = C * Math.sin((hue * Math.PI) / 180);
  const l = (L + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (L - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (L - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    byte(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
    byte(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
    byte(-0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s),
  ];
}

const hex = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
export const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;

const THEMES = {
  dark: {
    live: ["#252d38", "#23745f", "#d9a62e", "#f0524f"].map(hex),
    ink: "#0d1117",
    grid: hex("#12171e"),
    // From calm to glaring.
    lag: [hex("#252d38"), hex("#1d3f5e"), hex("#2f6f9f"), hex("#63a9b9"), hex("#e6cf73"), hex("#ff8a4c")],
    client: (hue) => oklch(0.66, 0.1, hue),
  },
  light: {
    live: ["#e6eaef", "#84c7b1", "#e3a008", "#d92d33"].map(hex),
    ink: "#ffffff",
    grid: hex("#ffffff"),
    lag: [hex("#e6eaef"), hex("#d3e3f1"), hex("#9dc3e0"), hex("#5a93bf"), hex("#b5642c"), hex("#8f1d14")],
    client: (hue) => oklch(0.735, 0.105, hue),
  },
};

const query = window.matchMedia("(prefers-color-scheme: dark)");
export const theme = () => THEMES[query.matches ? "dark" : "light"];
export const onTheme = (callback) => query.addEventListener("change", callback);

const HIGHEST_LAG = 22; // 2^20 messages and more have the last colour

export function lagColour(bucket) {
  const stops = theme().lag;
  if (bucket === 0) return stops[0];
  const at = (Math.min(bucket, HIGHEST_LAG) - 1) / (HIGHEST_LAG - 1) * (stops.length - 2) + 1;
  const low = Math.min(stops.length - 2, Math.floor(at));
  return stops[low].map((c, i) => Math.round(c + (stops[low + 1][i] - c) * (at - low)));
}

const GOLDEN = 137.50776;
export const clientColour = (index) =>
  index === 0 ? theme().live[FREE] : theme().client((index * GOLDEN + 40) % 360);

// A number, and so a colour, for a client that holds nothing any more and so has none.
export function strangerNumber(name) {
  let hash = 7;
  for (const letter of name) hash = (hash * 31 + letter.codePointAt(0)) % 100_003;
  return 1 + hash;
}

// bucket → what it stands for
export function lagText(bucket) {
  if (bucket === 0) return "unknown";
  if (bucket === 1) return "0";
  if (bucket === 2) return "1";
  return `${(2 ** (bucket - 2)).toLocaleString("en")}–${(2 ** (bucket - 1) - 1).toLocaleString("en")}`;
}

// One colour for each cell: mode is "live", "holder" or "lag".
export function painter(mode) {
  if (mode === "holder") {
    const known = new Map();
    return (row, slot) => {
      const holder = row.holders[slot];
      let colour = known.get(holder);
      if (!colour) known.set(holder, (colour = clientColour(holder)));
      return colour;
    };
  }
  if (mode === "lag") {
    const known = Array.from({ length: 66 }, (_, bucket) => lagColour(bucket));
    return (row, slot) => known[row.lag[slot]];
  }
  const { live } = theme();
  return (row, slot) => live[row.live[slot]];
}
