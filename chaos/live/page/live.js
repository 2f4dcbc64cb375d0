// The page's beginning and its controls: takes updates, keeps the newest values, draws what changed.
import { drawCards } from "./cards.js";
import { drawLag, drawLatency, drawRate, drawTimeline } from "./charts.js";
import { drawCluster, newest } from "./cluster.js";
import { lasting, minutes } from "./svg.js";

const KEPT = { span: 400, event: 200, point: 600 };
const TOGGLES = { k: ["kill", "start"], p: ["pause", "resume"], c: ["cut", "heal"], w: ["powercut"], m: ["promote"] };
const SURE_MS = 3000;
const token = new URLSearchParams(location.search).get("token") ?? sessionStorage.getItem("token") ?? "";
const byId = id => document.getElementById(id);

const state = {
  values: new Map(), span: new Map(), event: new Map(), point: new Map(),
  chosen: "", newest: 0, updates: 0, range: 180,
};
globalThis.live = state; // for tests and the curious

if (location.search) history.replaceState(null, "", "/");
if (token) sessionStorage.setItem("token", token); // for a reload; of this port's pages only

function take(update) {
  if (update.whole) {
    for (const name of ["values", "span", "event", "point"]) state[name].clear();
    byId("events").replaceChildren();
    state.newest = 0;
  }
  for (const [key, value] of Object.entries(update.values)) {
    const [kind, number] = key.split(":");
    if (kind in KEPT) {
      state[kind].set(Number(number), value);
      for (const old of state[kind].keys()) {
        if (old > Number(number) - KEPT[kind]) break;
        state[kind].delete(old);
      }
    } else {
      state.values.set(key, value);
    }
  }
  state.updates += 1;
  draw();
}

let drawing = false;
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => { drawing = false; drawAll(); });
}

function drawAll() {
  const run = state.values.get("run");
  if (!run) return;
  const machines = [...run.nameservers, ...run.nodes];
  if (!machines.includes(state.chosen)) state.chosen = run.nodes[0];
  drawHead(run);
  drawCluster(byId("cluster"), state, choose);
  drawCards(byId("cards"), state, choose, press);
  drawFigures(run);
  drawRate(byId("rate"), state);
  drawLatency(byId("latency"), state);
  drawLag(byId("lag"), state);
  drawHealth();
  drawJudging();
  drawTimeline(byId("timeline"), state);
  drawEvents();
  drawVerdict();
}

function drawHead(run) {
  const phase = state.values.get("phase") ?? { name: "", zero: null };
  const since = phase.zero === null ? 0 : Math.max(0, (state.values.get("clock") ?? 0) - phase.zero);
  text("title", run.title);
  text("subtitle", run.mode === "run" ? `seed ${run.seed} · ${run.backend} · ${run.promise}` : run.promise);
  document.title = `${run.title}: ${phase.name}`;
  text("phase", phase.name);
  byId("phase").className = `pill ${phase.name.replace(/\s/g, "-")}`;
  text("clock", minutes(since));
  const unavailable = phase.name === "faults" ? "" : "only in the fault phase";
  for (const id of ["heal-all", "end"]) {
    byId(id).hidden = run.mode !== "run";
    able(byId(id), unavailable);
  }
}

function drawFigures(run) {
  const points = [...state.point.values()];
  const last = newest(state);
  for (const name of ["ok", "weak", "fail", "info"]) {
    const value = last?.[name] ?? 0;
    text(`f-${name}`, !last ? "–" : value >= 100 ? Math.round(value).toLocaleString("en") : value.toFixed(value ? 1 : 0));
  }
  for (const name of ["p50", "p99"]) text(`f-${name}`, last?.[name] == null ? "–" : short(last[name]));
  text("f-lag", last?.lag == null ? "–" : last.lag.toLocaleString("en"));
  byId("h-load").closest("section").hidden = run.mode !== "run" && !points.length;
}

function drawEvents() {
  const list = byId("events");
  const zero = state.values.get("phase")?.zero ?? null; // before the load begins nobody knows when
  for (const [number, event] of state.event) {
    if (number <= state.newest) continue;
    state.newest = number;
    const item = document.createElement("li");
    const quiet = ["phase", "heal", "start", "recovered", "promote", "cut", "exit", ""];
    item.className = `${event.kind} ${quiet.includes(event.kind) ? "" : "fault"} ${event.hand ? "hand" : ""}`;
    const time = document.createElement("time");
    const words = document.createElement("span");
    words.textContent = event.text + (event.hand ? "  (by hand)" : "");
    item.append(time, words);
    item.at = event.t;
    const later = [...list.children].findLast(other => other.at > event.t);
    if (later) later.after(item);
    else list.prepend(item);
  }
  while (list.children.length > KEPT.event) list.lastElementChild.remove();
  for (const item of list.children) {
    const time = item.firstElementChild, since = item.at - zero;
    time.textContent = zero === null ? "set up" : minutes(since);
    time.title = zero === null ? "" : `${since.toFixed(3)} s`;
  }
}

// The mark says how the cluster is, whatever the run does; the banner what nobody may overlook.
function drawHealth() {
  const phase = state.values.get("phase")?.name, health = state.values.get("health");
  const stands = health && ["faults", "recovery", "drain", "watching"].includes(phase);
  const out = stands && health.since != null;
  text("health", stands ? `${health.mark === "well" ? "✓" : "!"} ${health.mark}` : "");
  byId("health").className = `health ${stands ? health.mark.replace(" ", "-") : ""}`;
  byId("health").title = stands && health.why.length ? health.why.join(", ") : "how the cluster is";
  byId("banner").hidden = !out;
  if (!out) return;
  const why = health.why.join(", ") || "no machine is down";
  text("banner", `NO WRITES for ${lasting(Math.max(1, Math.floor((state.values.get("clock") ?? 0) - health.since)))}: ${why}`);
}

function drawJudging() {
  const judging = state.values.get("judging"), phase = state.values.get("phase")?.name;
  byId("judging").hidden = phase !== "judging";
  if (!judging) return text("judging-words", "judging");
  byId("judging-bar").value = judging.of ? judging.done / judging.of : 0;
  const done = judging.of ? `${judging.done} of ${judging.of} checks, ` : "";
  text("judging-words", `judging for ${lasting(judging.s)}: ${done}${judging.check}`);
}

function drawVerdict() {
  const verdict = state.values.get("verdict");
  const box = byId("verdict");
  box.hidden = !verdict;
  if (!verdict || box.dataset.shown === verdict.verdict) return;
  box.dataset.shown = verdict.verdict;
  box.className = verdict.verdict;
  text("verdict-word", verdict.verdict);
  text("verdict-text", verdict.sentence);
  const links = [["report", "report", verdict.report], ["session", "what was done, as a scenario", verdict.session]];
  byId("verdict-links").replaceChildren(...links.filter(([, , at]) => at).map(([id, name, at]) => {
    const link = document.createElement("a");
    Object.assign(link, { id: `link-${id}`, href: at, target: "_blank", rel: "noopener", textContent: name });
    return link;
  }));
  byId("verdict-findings").replaceChildren(...verdict.findings.map(finding => {
    const item = document.createElement("li");
    item.textContent = finding;
    return item;
  }));
}

function choose(name) {
  state.chosen = name;
  draw();
}

async function press(action, name = "") {
  const reason = name ? state.values.get(`machine:${name}`)?.buttons[action] : "";
  if (reason) return note(`${action} ${name}: ${reason}`, true);
  try {
    const answer = await fetch("/press", {
      method: "POST",
      headers: { "content-type": "application/json", "x-rocketbed-token": token },
      body: JSON.stringify({ action, name }),
    });
    note(await answer.text(), !answer.ok);
  } catch {
    note("the harness does not answer", true);
  }
}

let sure = 0;
function end() {
  const now = performance.now();
  if (byId("end").getAttribute("aria-disabled") === "true") return note(byId("end").title, true);
  if (now - sure > SURE_MS) {
    sure = now;
    return note("Press again to end the faults: everything is healed, read back and checked", true);
  }
  sure = 0;
  press("end");
}

let noted = 0;
function note(words, bad = false) {
  const line = byId("note");
  line.textContent = words;
  line.className = bad ? "shown bad" : "shown";
  clearTimeout(noted);
  noted = setTimeout(() => { line.className = ""; }, 3500);
}

function able(button, reason) {
  button.setAttribute("aria-disabled", String(Boolean(reason)));
  button.title = reason;
}

function text(id, words) {
  const element = byId(id);
  if (element.textContent !== words) element.textContent = words;
}

function short(value) {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || byId("keys").open) return;
  const run = state.values.get("run");
  const key = event.key.toLowerCase();
  if (!run) return;
  if (key === "?") return byId("keys").showModal();
  if (/^[1-9]$/.test(key)) {
    const name = [...run.nodes, ...run.nameservers][Number(key) - 1];
    if (name) choose(name);
  } else if (key in TOGGLES) {
    const buttons = state.values.get(`machine:${state.chosen}`)?.buttons ?? {};
    press(TOGGLES[key].find(action => buttons[action] === "") ?? TOGGLES[key][0], state.chosen);
  } else if (key === "h" && run.mode === "run") {
    press("heal-all");
  } else if (key === "e" && run.mode === "run") {
    end();
  }
});
for (const button of byId("range").children) {
  button.addEventListener("click", () => {
    state.range = Number(button.dataset.s);
    for (const other of byId("range").children) other.setAttribute("aria-pressed", String(other === button));
    draw();
  });
  button.setAttribute("aria-pressed", String(Number(button.dataset.s) === state.range));
}
byId("help").addEventListener("click", () => byId("keys").showModal());
byId("heal-all").addEventListener("click", () => press("heal-all"));
byId("end").addEventListener("click", end);
addEventListener("resize", draw);

const feed = new EventSource("/feed");
feed.onmessage = event => take(JSON.parse(event.data));
feed.onopen = () => { byId("line").className = "line on"; text("line", "live"); };
feed.onerror = () => {
  const gone = feed.readyState === EventSource.CLOSED;
  byId("line").className = "line off";
  text("line", "offline");
  if (gone) note("the harness is gone", true);
};
