// Three drawings over the same last minutes: rates, latency, and what was done to whom.
import { canvas, lasting, minutes, put, sweep } from "./svg.js";

const LAYERS = ["grid", "data", "faults", "names"], RIGHT = 8, SHORTEST_S = 30, KINDS = ["ok", "weak", "fail", "info"];

function frame(state, place, height, label) {
  const { layers, width } = canvas(place, height, label, LAYERS);
  const run = state.values.get("run");
  const longest = Math.max(...[...run.nodes, ...run.nameservers].map(name => name.length));
  const left = Math.min(92, Math.max(46, 7 * longest + 16));
  const zero = state.values.get("phase")?.zero ?? 0;
  const now = Math.max(state.values.get("clock") ?? 0, [...state.point.values()].at(-1)?.t ?? 0);
  const first = Math.min(zero, ...[...state.span.values()].map(span => span.begin));
  const length = Math.min(state.range, Math.max(SHORTEST_S, now - first));
  const begin = Math.max(first, now - length);
  const x = time => left + (width - left - RIGHT) * (time - begin) / length;
  return { ...layers, width, left, zero, now, begin, length, x };
}

function timeAxis(f, top, bottom) {
  const step = [5, 10, 20, 30, 60].find(s => (f.width - f.left) * s / f.length > 56) ?? 60;
  const first = Math.ceil((f.begin - f.zero) / step) * step;
  for (let time = first; time <= f.begin + f.length - f.zero; time += step) {
    const x = f.x(time + f.zero);
    put(f.grid, `grid ${time}`, "line", { x1: x, x2: x, y1: top, y2: bottom, class: "grid" });
    if (x < f.width - 14) put(f.grid, `time ${time}`, "text", { x, y: bottom + 14, class: "tick small" }, minutes(time));
  }
}

// Faults of a moment as lines; times in which others were in force as bands, those that overlap as one.
function bands(f, state, top, bottom) {
  const open = { "": 0, hand: 0 };
  for (const [number, span] of [...state.span].sort(([, one], [, other]) => one.begin - other.begin)) {
    if (span.kind !== "fault") continue;
    const end = span.end ?? f.now, hand = span.hand ? "hand" : "";
    if (end < f.begin) continue;
    if (end - span.begin < 0.05) {
      const x = f.x(span.begin);
      put(f.faults, `flag ${number}`, "line", { x1: x, x2: x, y1: top, y2: bottom, class: `flag ${hand}` }, null, span.label);
      continue;
    }
    const x = f.x(Math.max(span.begin, f.begin, open[hand])), width = f.x(end) - x;
    if (width <= 0) continue;
    open[hand] = end;
    put(f.faults, `band ${number}`, "rect", { x, y: top, width, height: bottom - top, class: `band ${hand}` }, null, span.label);
  }
}

// Names of faults at the top of their bands, the newest first, on two lines as far as there is room.
function bandNames(f, state, top) {
  const free = [f.width, f.width];
  for (const [number, span] of [...state.span].reverse()) {
    if (span.kind !== "fault" || (span.end ?? f.now) < f.begin) continue;
    const x = f.x(Math.max(span.begin, f.begin)) + 3, words = span.label.split(" ").slice(0, 2).join(" ");
    const line = free.findIndex(room => x + words.length * 6 <= room);
    if (line < 0) continue;
    put(f.names, `band ${number}`, "text", { x, y: top + 10 + 12 * line, class: "fault-name" }, words, span.label);
    free[line] = x - 4;
  }
}

// Times without an acknowledgement, each with its length as far as there is room, the newest first.
function outages(f, state, bottom) {
  let free = f.width;
  for (const [number, span] of [...state.span].reverse()) {
    const end = span.end ?? f.now;
    if (span.kind !== "outage" || end < f.begin) continue;
    const x = f.x(Math.max(span.begin, f.begin)), width = Math.max(f.x(end) - x, 2), words = lasting(end - span.begin);
    put(f.faults, `outage ${number}`, "rect", { x, y: bottom - 5, width, height: 5, class: "outage" }, null, `no writes for ${words}`);
    const name = `no writes ${words}`, room = 6.6 * name.length, left = Math.min(x, free - room);
    if (left < f.left || left < x - room) continue;
    put(f.names, `outage ${number}`, "text", { x: left, y: bottom - 9, class: "outage-name" }, name);
    free = left - 4;
  }
}

export function drawLag(place, state) {
  const top = 8, bottom = 60;
  const f = frame(state, place, bottom + 20, "Messages that readers are behind");
  const points = [...state.point.values()].filter(point => point.t >= f.begin - 1 && point.lag != null);
  const most = nice(Math.max(10, ...points.map(point => point.lag)));
  const y = value => bottom - (bottom - top) * value / most;
  timeAxis(f, top, bottom);
  const steps = points.map(point => `${f.x(Math.max(point.t, f.begin)).toFixed(1)} ${y(point.lag).toFixed(1)}`);
  put(f.data, "plot lag", "path", { class: "plot lag", d: steps.length ? `M${steps.join("L")}` : "M0 0" });
  axis(f, most, y(most), most.toLocaleString("en"));
  sweep(...LAYERS.map(name => f[name]));
}

export function drawRate(place, state) {
  const top = 8, bottom = 112;
  const f = frame(state, place, bottom + 20, "Messages a second by outcome");
  const points = [...state.point.values()].filter(point => point.t >= f.begin - 1);
  const most = nice(Math.max(10, ...points.map(point => KINDS.reduce((sum, kind) => sum + point[kind], 0))));
  const y = value => bottom - (bottom - top) * value / most;
  timeAxis(f, top, bottom);
  let floor = points.map(() => 0);
  for (const kind of KINDS) {
    const ceiling = points.map((point, number) => floor[number] + point[kind]);
    const upper = points.map((point, number) => `${f.x(Math.max(point.t, f.begin)).toFixed(1)} ${y(ceiling[number]).toFixed(1)}`);
    const lower = points.map((point, number) => `${f.x(Math.max(point.t, f.begin)).toFixed(1)} ${y(floor[number]).toFixed(1)}`).reverse();
    put(f.data, `area ${kind}`, "path", { class: `area ${kind}`, d: points.length > 1 ? `M${upper.join("L")}L${lower.join("L")}Z` : "M0 0" });
    floor = ceiling;
  }
  for (const value of [most, most / 2]) axis(f, value, y(value), `${value.toLocaleString("en")}/s`);
  bands(f, state, top, bottom);
  bandNames(f, state, top);
  outages(f, state, bottom);
  sweep(...LAYERS.map(name => f[name]));
}

export function drawLatency(place, state) {
  const top = 8, bottom = 96;
  const f = frame(state, place, bottom + 20, "Latency of acknowledged sends: p50 and p99");
  const points = [...state.point.values()].filter(point => point.t >= f.begin - 1);
  const values = points.flatMap(point => [point.p50, point.p99]).filter(value => value != null && value > 0);
  const low = 10 ** Math.floor(Math.log10(Math.min(1, ...values))), high = 10 ** Math.ceil(Math.log10(Math.max(10, ...values)));
  const y = value => bottom - (bottom - top) * Math.log(Math.max(value, low) / low) / Math.log(high / low);
  timeAxis(f, top, bottom);
  for (const name of ["p99", "p50"]) {
    let path = "", open = false;
    for (const point of points) {
      if (point[name] == null) { open = false; continue; }
      path += `${open ? "L" : "M"}${f.x(Math.max(point.t, f.begin)).toFixed(1)} ${y(point[name]).toFixed(1)}`;
      open = true;
    }
    put(f.data, `plot ${name}`, "path", { class: `plot ${name}`, d: path || "M0 0" });
  }
  for (let value = low; value <= high; value *= 10) {
    axis(f, value, y(value), value >= 1000 ? `${value / 1000} s` : `${Number(value.toPrecision(1))} ms`);
  }
  bands(f, state, top, bottom);
  sweep(...LAYERS.map(name => f[name]));
}

export function drawTimeline(place, state) {
  const run = state.values.get("run");
  const names = [...run.nodes, ...run.nameservers], each = 30, top = 6;
  const bottom = top + each * names.length;
  const f = frame(state, place, bottom + 20, "What each machine was, and what was done to it");
  timeAxis(f, top, bottom);
  names.forEach((name, number) => {
    const y = top + each * number;
    put(f.grid, `row ${name}`, "text", { x: f.left - 8, y: y + 19, class: "axis" }, name);
    for (const [key, span] of state.span) {
      const end = span.end ?? f.now;
      if (!span.rows.includes(name) || end < f.begin) continue;
      const x = Math.max(f.x(span.begin), f.left), width = Math.max(f.x(end) - x, 2);
      if (span.kind === "fault") {
        const shape = { x, y: y + 3, width, height: 23, rx: 3, class: `over ${span.hand ? "hand" : ""}` };
        put(f.faults, `over ${key} ${name}`, "rect", shape, null, span.label);
      } else {
        put(f.data, `bar ${key} ${name}`, "rect", { x, y: y + 8, width, height: 13, rx: 2, class: `role ${span.kind}` }, null, `${name}: ${span.kind}`);
      }
    }
  });
  names.forEach((name, number) => label(f, state, name, top + each * number));
  sweep(...LAYERS.map(name => f[name]));
}

// Names of faults, the newest first, as long as there is room for them.
function label(f, state, name, y) {
  let free = f.width;
  for (const [key, span] of [...state.span].reverse()) {
    if (span.kind !== "fault" || !span.rows.includes(name) || span.begin < f.begin) continue;
    const x = f.x(span.begin) + 3, words = span.verb + (span.hand ? " *" : ""), length = words.length * 6.4;
    if (x + length > free) continue;
    put(f.names, `name ${key} ${name}`, "text", { x, y: y + 19, class: "fault-name" }, words);
    free = x - 4;
  }
}

function axis(f, value, y, words) {
  put(f.grid, `line ${value}`, "line", { x1: f.left, x2: f.width - RIGHT, y1: y, y2: y, class: "grid" });
  put(f.grid, `axis ${value}`, "text", { x: f.left - 6, y: y + 4, class: "axis small" }, words);
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map(step => step * power).find(step => step >= value);
}
