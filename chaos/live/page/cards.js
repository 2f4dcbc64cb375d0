// A card for each machine: state, the offsets of its log as moving bars, its buttons.
import { kindOf, roleOf, stateOf } from "./cluster.js";
import { bytes } from "./svg.js";

const OFFSETS = [["written", "written"], ["flushed", "flushed"], ["confirmed", "acknowledged"], ["dispatched", "dispatched"]];
const BUTTONS = [["k", "kill", "Kill", "start", "Start"], ["p", "pause", "Pause", "resume", "Resume"],
  ["c", "cut", "Cut", "heal", "Heal"], ["w", "powercut", "Power", "", ""], ["m", "promote", "Promote", "", ""]];
const LABELS = { kill: "kill", start: "start", pause: "pause", resume: "resume", cut: "cut off", heal: "heal the links of",
  powercut: "cut the power of", promote: "make the master" };
const WINDOW_MIN = 1 << 16, WINDOW_S = 8, STRIPES = 8;
const cards = new Map();

export function drawCards(place, state, choose, press) {
  const run = state.values.get("run");
  const names = [...run.nodes, ...run.nameservers];
  const scale = windowOf(state, run.nodes);
  names.forEach((name, number) => {
    const machine = state.values.get(`machine:${name}`);
    if (!machine) return;
    let card = cards.get(name);
    if (!card) {
      card = make(name, number, machine.kind === "node", choose, press);
      cards.set(name, card);
      place.children[machine.kind === "node" ? 0 : 1].append(card.root);
    }
    update(card, name, machine, state, scale);
  });
}

// What the bars show: the last stretch of the longest log, as much as some seconds add to it, or as
// the one furthest behind lacks. Stripes on the bars stand still in the log, so they move with it.
let shown = WINDOW_MIN, speed = 0, before = { end: 0, time: 0 };
function windowOf(state, nodes) {
  const known = nodes.map(node => state.values.get(`at:${node}`)).filter(Boolean);
  const end = Math.max(0, ...known.map(at => at.written));
  const behind = Math.max(0, ...known.map(at => end - Math.min(at.written, at.flushed, at.confirmed, at.dispatched)));
  const time = performance.now() / 1000, passed = time - before.time;
  if (passed > 1) {
    if (before.end && end >= before.end) speed = 0.7 * speed + 0.3 * (end - before.end) / passed;
    before = { end, time };
  }
  const wanted = Math.max(WINDOW_MIN, behind * 1.2, speed * WINDOW_S);
  while (shown < wanted) shown *= 2;
  while (shown > wanted * 3) shown /= 2;
  return { begin: end - shown, length: shown };
}

function make(name, number, isNode, choose, press) {
  const root = element("article", "card");
  root.dataset.name = name;
  const head = element("div", "head");
  const title = element("h3");
  const pick = element("button", "", name);
  pick.type = "button";
  pick.addEventListener("click", () => choose(name));
  title.append(pick);
  const role = element("span", "badge"), state = element("span", "badge");
  const digit = element("kbd", "", String(number + 1));
  head.append(...(number < 9 ? [digit] : []), title, role, state);
  const rows = element("dl", "rows");
  const offsets = {};
  for (const [key, label] of isNode ? OFFSETS : []) {
    const bar = element("dd", `bar ${key}`), fill = element("i"), value = element("dd", "value", "–");
    bar.append(fill);
    rows.append(element("dt", "", label), bar, value);
    offsets[key] = { fill, value };
  }
  const disk = { bar: element("dd", "bar disk"), fill: element("i"), value: element("dd", "value", "–") };
  if (isNode) {
    disk.bar.append(disk.fill);
    rows.append(element("dt", "", "disk"), disk.bar, disk.value);
  }
  const group = element("p", "group");
  const row = element("div", "buttons");
  const buttons = [];
  for (const [key, action, label, opposite, other] of BUTTONS) {
    if (!isNode && (action === "powercut" || action === "promote")) continue;
    const button = element("button");
    const word = document.createTextNode(label);
    button.type = "button";
    button.append(element("kbd", "", key), word);
    button.addEventListener("click", () => { choose(name); press(button.dataset.action, name); });
    row.append(button);
    buttons.push({ button, word, action, label, opposite, other });
  }
  root.append(head, group, rows, row);
  return { root, role, state, group, offsets, disk, buttons };
}

function update(card, name, machine, state, scale) {
  const at = state.values.get(`at:${name}`);
  const kind = kindOf(machine, at);
  const silent = machine.state === "running" && at && !at.answers;
  classes(card.root, `card ${kind} ${machine.cut ? "cut" : ""} ${state.chosen === name ? "chosen" : ""} ${silent || machine.state !== "running" ? "stale" : ""}`);
  badge(card.role, machine.state === "down" ? "" : machine.role, roleOf(machine) || machine.role);
  fill(card, at?.disk);
  if (card.group.textContent !== (at?.group ?? "")) card.group.textContent = at.group;
  const word = machine.cut && machine.state === "running" ? "cut" : silent ? "silent" : kind === "recovering" ? kind : machine.state;
  badge(card.state, word, word === "cut" ? "cut off" : word);
  card.state.title = stateOf(machine, kind);
  const width = at ? card.offsets.written?.fill.parentElement.clientWidth ?? 0 : 0;
  for (const [key, { fill, value }] of Object.entries(card.offsets)) {
    if (!at) continue;
    const share = Math.max(0, Math.min(1, (at[key] - scale.begin) / scale.length));
    const stripe = width / STRIPES, moved = scale.begin / scale.length * STRIPES % 1;
    fill.style.width = `${(share * 100).toFixed(1)}%`;
    fill.style.backgroundSize = `${stripe.toFixed(1)}px 100%`;
    fill.style.backgroundPositionX = `${(-moved * stripe).toFixed(1)}px`;
    const behind = at.written - at[key];
    const words = key === "written" ? at.written.toLocaleString("en") : behind ? `−${bytes(behind)}` : "all";
    if (value.textContent !== words) value.textContent = words;
    value.title = `${at[key].toLocaleString("en")} bytes`;
  }
  for (const { button, word: label, action, label: first, opposite, other } of card.buttons) {
    const turned = opposite && machine.buttons[opposite] === "";
    const now = turned ? opposite : action;
    const reason = machine.buttons[now];
    if (button.dataset.action !== now) button.dataset.action = now;
    if (label.data !== (turned ? other : first)) label.data = turned ? other : first;
    const disabled = String(Boolean(reason));
    if (button.getAttribute("aria-disabled") !== disabled) button.setAttribute("aria-disabled", disabled);
    const title = `${LABELS[now]} ${name}${reason ? `: ${reason}` : ""}`;
    if (button.title !== title) { button.title = title; button.setAttribute("aria-label", title); }
  }
}

function fill({ disk }, share) {
  const words = share == null ? "–" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} % full`;
  if (disk.value.textContent !== words) disk.value.textContent = words;
  disk.fill.style.width = `${((share ?? 0) * 100).toFixed(1)}%`;
  classes(disk.bar, share > 0.85 ? "bar disk full" : "bar disk");
}

function badge(element, kind, words) {
  classes(element, `badge ${kind}`);
  if (element.textContent !== words) element.textContent = words;
}

function classes(element, names) {
  if (element.className !== names) element.className = names;
}

function element(tag, names = "", words = "") {
  const made = document.createElement(tag);
  if (names) made.className = names;
  if (words) made.textContent = words;
  return made;
}
