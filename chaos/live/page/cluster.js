// The cluster as boxes and wires: who is who, in what state, who copies from whom, what is cut.
import { bytes, canvas, put, set, sweep } from "./svg.js";

const BOX = 78, GAP = 14, SMALL = 46;

// What a machine is now, as a class of styles.
export function kindOf(machine, at) {
  if (machine.state !== "running") return machine.state;
  if (machine.kind === "nameserver") return "nameserver";
  if (machine.recovering) return "recovering";
  return machine.role;
}

export function drawCluster(place, state, choose) {
  const run = state.values.get("run");
  const groups = Object.entries(run.groups);
  const width = Math.max(place.clientWidth, 240);
  const places = new Map();
  let y = 4;
  row(["load", ...run.nameservers], y, SMALL, width, places);
  const air = width > 560 ? 52 : 40;
  y += SMALL + air;
  for (const [, nodes] of groups) {
    const master = nodes.find(node => state.values.get(`machine:${node}`)?.role === "master") ?? nodes[0];
    const slaves = nodes.filter(node => node !== master);
    row([master], y, BOX, width, places, 240);
    const perRow = Math.max(1, Math.floor((width + GAP) / (130 + GAP)));
    y += BOX + (slaves.length ? air : 12);
    for (let first = 0; first < slaves.length; first += perRow) {
      row(slaves.slice(first, first + perRow), y, BOX, width, places);
      y += BOX + GAP;
    }
  }
  const label = "The cluster: machines, their roles, replication and cuts";
  const { wires, boxes } = canvas(place, y + 2, label, ["wires", "boxes"]).layers;
  const cuts = new Map((state.values.get("links") ?? []).map(([one, other, kind]) => [`${one}>${other}`, kind]));
  const fault = (one, other) => cuts.get(`${one}>${other}`) ?? cuts.get(`${other}>${one}`);
  const rate = newest(state)?.ok ?? null;
  for (const [group, nodes] of groups) {
    const master = nodes.find(node => state.values.get(`machine:${node}`)?.role === "master") ?? nodes[0];
    const leads = state.values.get(`machine:${master}`)?.state === "running";
    const toLoad = state.values.get(`machine:${master}`)?.cut ? "cut" : undefined;
    wire(wires, `load>${group}`, places.get("load"), places.get(master), (rate ?? 0) > 0 && leads ? "load" : "idle", toLoad);
    for (const node of nodes.filter(name => name !== master)) {
      const follows = state.values.get(`at:${node}`)?.following && state.values.get(`machine:${node}`)?.state === "running";
      wire(wires, `${master}>${node}`, places.get(master), places.get(node), follows && leads ? "flow" : "idle", fault(master, node));
    }
    for (const server of run.nameservers) {
      wire(wires, `${server}>${master}`, places.get(server), places.get(master), "", fault(server, master));
    }
  }
  for (const [name, box] of places) drawBox(boxes, name, box, state, choose, rate);
  sweep(wires, boxes);
}

function row(names, y, height, width, places, widest = 210) {
  const each = Math.min(widest, (width - 4 - GAP * (names.length - 1)) / names.length);
  const all = each * names.length + GAP * (names.length - 1);
  names.forEach((name, number) => {
    places.set(name, { x: (width - all) / 2 + number * (each + GAP), y, width: each, height });
  });
}

function wire(layer, key, from, to, kind, fault) {
  if (!from || !to) return;
  const x1 = from.x + from.width / 2, y1 = from.y + from.height, x2 = to.x + to.width / 2, y2 = to.y;
  const middle = (y1 + y2) / 2;
  const state = fault === "cut" ? "broken" : fault ? "slow" : kind;
  put(layer, `wire ${key}`, "path", { d: `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`, class: `wire ${state}` });
  if (fault === "cut") put(layer, `cut ${key}`, "text", { x: (x1 + x2) / 2, y: middle + 5, class: "scissors" }, "✂");
}

function drawBox(layer, name, box, state, choose, rate) {
  const machine = state.values.get(`machine:${name}`);
  const at = state.values.get(`at:${name}`);
  const isLoad = name === "load";
  if (!machine && !isLoad) return;
  const kind = isLoad ? "load" : kindOf(machine, at);
  const group = put(layer, `box ${name}`, "g", {
    class: `box ${kind} ${machine?.cut ? "cut" : ""} ${state.chosen === name ? "chosen" : ""}`,
    transform: `translate(${Math.round(box.x)} ${Math.round(box.y)})`,
  });
  if (!group.kept) {
    group.kept = new Map();
    if (!isLoad) group.addEventListener("click", () => choose(name));
  }
  group.used = new Set();
  set(group, { "data-name": name });
  put(group, "body", "rect", { class: "body", width: box.width, height: box.height, rx: 8 });
  if (!isLoad) put(group, "side", "rect", { class: "side", width: 6, height: box.height, rx: 3 });
  const middle = box.height < BOX ? 20 : 24;
  put(group, "name", "text", { class: "bold", x: 16, y: middle }, isLoad ? "clients" : name);
  const words = isLoad ? rate === null ? "no load" : `${Math.round(rate).toLocaleString("en")} ok/s` : stateOf(machine, kind);
  put(group, "words", "text", { class: "small", x: 16, y: middle + 17 }, words);
  if (at && box.height >= BOX) {
    const unflushed = at.written - at.flushed;
    put(group, "log", "text", { class: "small", x: 16, y: middle + 35 },
      bytes(at.written) + (unflushed > 0 && box.width > 190 ? `, ${bytes(unflushed)} unflushed` : ""));
  }
  sweep(group);
}

// A machine's role; of one that is down what it was.
export function roleOf(machine) {
  if (machine.role === "nameserver") return "";
  return machine.state === "down" ? `was ${machine.role}` : machine.role;
}

// The newest half second of the load; none once nobody sends, so that no figure stands still.
export function newest(state) {
  const last = [...state.point.values()].at(-1);
  const sends = ["faults", "recovery", "drain", "watching"].includes(state.values.get("phase")?.name);
  return last && sends && (state.values.get("clock") ?? 0) - last.t < 2 ? last : undefined;
}

export function stateOf(machine, kind) {
  const word = machine.state === "running" ? kind : [machine.state, roleOf(machine)].filter(Boolean).join(", ");
  return machine.cut ? `${word}, cut off` : word;
}
