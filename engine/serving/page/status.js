"use strict";

const PERIOD_MS = 1000, KEPT = 120;
const COLOURS = { cpu: "#2f6fde", opencl: "#3a9d6e", npu: "#c2652a", host: "#8a63d2" };
const SPARE = ["#b8436d", "#6b7a99", "#a38a1f", "#2a9aa8"];
const cards = new Map();
let timer = 0;

const $ = (id) => document.getElementById(id);
const one = (card, name) => card.root.querySelector("." + name);
const ms = (seconds) => (seconds ? (seconds * 1e3 < 10 ? (seconds * 1e3).toFixed(2) : (seconds * 1e3).toFixed(0)) + " ms" : "-");

function say(node, text) { if (node.textContent !== text) node.textContent = text; }

function pill(node, text, kind) { say(node, text); node.className = node.className.replace(/ (good|bad|warn)|^(good|bad|warn)$/g, "") + " " + kind; }

async function ask(path) {
  const token = sessionStorage.getItem("token");
  const answer = await fetch(path, { headers: token ? { Authorization: "Bearer " + token } : {}, cache: "no-store" });
  $("entry").hidden = answer.status !== 401;
  $("refused").hidden = !token;
  $("links").hidden = Boolean(token) || answer.status === 401;
  if (!answer.ok) throw new Error(answer.status === 401 ? "needs a token" : "HTTP " + answer.status);
  return answer.json();
}

function colour(device) {
  const kind = device.split("#")[0];
  if (!(kind in COLOURS)) COLOURS[kind] = SPARE[Object.keys(COLOURS).length % SPARE.length];
  return COLOURS[kind];
}

function card(row) {
  const key = row.name + "\n" + row.version;
  if (!cards.has(key)) {
    const root = $("model").content.firstElementChild.cloneNode(true);
    $("models").append(root);
    cards.set(key, { key, root, latency: [], queue: [], placed: false });
  }
  return cards.get(key);
}

function line(svg, name, values, top) {
  const points = values.map((value, k) => `${300 - (values.length - 1 - k) * (300 / (KEPT - 1))},${58 - 54 * Math.min(1, value / top)}`);
  svg.querySelector("polyline." + name).setAttribute("points", points.join(" "));
}

function chart(card, name, rows, unit) {
  const svg = one(card, name), top = Math.max(...rows.flat(), 1e-9);
  line(svg, "a", rows.map((row) => row[0]), top);
  line(svg, "b", rows.map((row) => row[1]), top);
  say(svg.parentElement.querySelector(".top"), unit(top));
}

function push(rows, row) { rows.push(row); if (rows.length > KEPT) rows.shift(); }

function show(row) {
  const mine = card(row);
  say(one(mine, "name"), row.name);
  say(one(mine, "version"), "version " + row.version);
  pill(one(mine, "state"), row.state.toLowerCase(), row.state === "READY" ? "good" : "bad");
  say(one(mine, "reason"), row.reason);
  one(mine, "body").hidden = row.waiting === undefined;
  if (row.waiting === undefined) return;
  say(one(mine, "per_s"), row.per_s < 10 ? row.per_s.toFixed(1) : row.per_s.toFixed(0));
  say(one(mine, "p50"), ms(row.p50_s));
  say(one(mine, "p99"), ms(row.p99_s));
  say(one(mine, "running"), `${row.running} / ${row.concurrency}`);
  say(one(mine, "waiting"), `${row.waiting} / ${row.max_queue}`);
  for (const name of ["answered", "failed", "refused"]) say(one(mine, name), row[name].toLocaleString("en"));
  say(one(mine, "busy"), Math.min(100, (100 * row.busy) / row.concurrency).toFixed(0) + " %");
  push(mine.latency, [row.p50_s * 1e3, row.p99_s * 1e3]);
  push(mine.queue, [row.waiting, row.running]);
  chart(mine, "latency", mine.latency, (top) => (top > 1e-6 ? top.toFixed(top < 10 ? 2 : 0) + " ms" : ""));
  chart(mine, "queue", mine.queue, (top) => (top > 1e-6 ? String(top) : ""));
  const faults = [...row.devices_out.map((name) => `${name} is passed over: it failed`), ...row.events];
  one(mine, "faults").hidden = !faults.length;
  say(one(mine, "faults"), faults.join("\n"));
  say(one(mine, "tensors"), `takes ${row.inputs.join(", ")}\ngives ${row.outputs.join(", ")}`);
  if (!mine.placed) { mine.placed = true; row.is_stored ? offer(mine, row) : place(mine, row); }
}

function offer(mine, row) {
  const button = document.createElement("button");
  button.textContent = "show the placement";
  button.title = "The model runs a stored program: showing its placement prepares the model once.";
  button.addEventListener("click", () => { button.disabled = true; place(mine, row); });
  const known = row.devices.length ? `devices: ${row.devices.join(", ")} ` : "";
  one(mine, "legend").replaceChildren(known, button);
}

async function place(mine, row) {
  const legend = one(mine, "legend"), strip = one(mine, "strip");
  say(legend, "devices: " + row.devices.join(", "));
  let found;
  try {
    found = await ask(`status/placement?model=${encodeURIComponent(row.name)}&version=${encodeURIComponent(row.version)}`);
  } catch (error) { mine.placed = false; return; }
  if (!found.pieces) {
    say(legend, found.why || (found.stages.join("\n") || "the shapes are open: " + row.devices.join(", ")));
    mine.placed = Boolean(found.why || found.stages.length);
    return;
  }
  strip.replaceChildren(...found.pieces.map((piece) => {
    const part = document.createElement("i");
    part.style.flex = String(Math.max(piece.seconds, found.makespan_s / 500) * 1e6);
    part.style.background = colour(piece.device);
    part.title = `${piece.device}: ${piece.nodes} nodes, ${ms(piece.seconds)} predicted: ${piece.ops}`;
    return part;
  }));
  legend.replaceChildren(...Object.entries(found.devices).map(([device, seconds]) => {
    const part = document.createElement("span"), mark = document.createElement("b");
    mark.style.background = colour(device);
    const nodes = found.pieces.filter((piece) => piece.device === device).reduce((sum, piece) => sum + piece.nodes, 0);
    const simulated = found.simulated.includes(device) ? " (simulated)" : "";
    part.append(mark, `${device}${simulated}: ${nodes} nodes, ${ms(seconds)} predicted`);
    return part;
  }), `a run: ${ms(found.makespan_s)} predicted${found.simulated.length ? " on such devices" : ""}, ${found.copies} ${found.copies === 1 ? "copy" : "copies"} between devices`);
  for (const stage of found.stages || []) legend.append("\n" + stage);
  for (const [device, why] of Object.entries(found.unused)) legend.append(`\nunused: ${device}: ${why}`);
  for (const [device, why] of Object.entries(row.dropped)) legend.append(`\ndropped: ${device}: ${why}`);
}

async function turn() {
  try {
    const found = await ask("status").catch((error) => { throw error instanceof TypeError ? new Error("no answer") : error; });
    document.body.classList.remove("stale");
    say($("server"), `version ${found.version}, up ${Math.floor(found.uptime_s / 60)} min ${Math.floor(found.uptime_s % 60)} s`);
    pill($("state"), found.draining ? "draining" : found.ready ? "ready" : "not ready", found.draining ? "warn" : found.ready ? "good" : "bad");
    found.models.forEach(show);
    const known = new Set(found.models.map((row) => row.name + "\n" + row.version));
    for (const [key, mine] of cards) if (!known.has(key)) { mine.root.remove(); cards.delete(key); }
    $("empty").hidden = found.models.length > 0;
  } catch (error) {
    pill($("state"), error.message, "bad");
    document.body.classList.add("stale");
  }
  timer = setTimeout(turn, PERIOD_MS);
}

$("entry").addEventListener("submit", (event) => { event.preventDefault(); sessionStorage.setItem("token", $("token").value); clearTimeout(timer); turn(); });
turn();
