// The status page of a relay: asks status.json and namespace.json again and again, and draws them.
// Names come from peers, so nothing is ever made into HTML: text goes in as text.
"use strict";

const INTERVAL_MS = 1000;
const RETRY_MS = 2000;
const TIMEOUT_MS = 8000;
const PAGE = 50;
const SAMPLES = 60;

const state = {offset: 0, search: "", chosen: "", isChosenHere: false, last: null, rates: []};
const byId = (id) => document.getElementById(id);

// Text.

function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (size >= 1024 && unit < units.length - 1) { size /= 1024; unit += 1; }
  return `${unit && size < 100 ? size.toFixed(size < 10 ? 2 : 1) : Math.round(size)} ${units[unit]}`;
}

function duration(seconds) {
  if (seconds < 1) return "now";
  if (seconds < 100) return `${Math.floor(seconds)} s`;
  if (seconds < 6000) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

const count = (number) => number.toLocaleString("en");
const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

// A field of a namespace in its text form, short: as text if it is text, else its first octets.
function shortField(field) {
  const hex = field.replace(/\.([0-9a-f]{2})|[^.]/g, (all, octet) =>
    octet || all.charCodeAt(0).toString(16).padStart(2, "0"));
  const plain = hex.match(/../g)?.map((octet) => parseInt(octet, 16)) ?? [];
  const isText = plain.every((octet) => octet >= 0x20 && octet < 0x7f);
  const text = isText ? String.fromCharCode(...plain) : hex;
  const most = isText ? 24 : 10;
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

const shortName = (name) => (name ? name.split("-").map(shortField).join(" / ") : "(no fields)");

// Elements.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Keep a node for each item in the order of the items; nodes that stay keep focus and selection.
function keep(parent, items, key, make, update) {
  const known = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  items.forEach((item, index) => {
    const name = String(key(item));
    let node = known.get(name);
    known.delete(name);
    if (!node) {
      node = make(item);
      node.dataset.key = name;
    }
    if (parent.children[index] !== node) parent.insertBefore(node, parent.children[index] ?? null);
    update(node, item);
  });
  for (const node of known.values()) node.remove();
}

function makeRow(kinds) {
  return () => element("tr", {}, ...kinds.map((kind) => element("td", kind ? {class: kind} : {})));
}

function fill(row, texts) {
  texts.forEach((text, index) => {
    const cell = row.children[index];
    if (typeof text === "string") setText(cell, text);
    else if (cell.textContent !== text.textContent || cell.firstChild?.className !== text.className)
      cell.replaceChildren(text);
  });
}

const tag = (text, kind = "") => element("span", {class: `tag ${kind}`.trim()}, text);

// Overview.

function cards(status) {
  const numbers = status.statistics;
  const asked = numbers.cache_hits + numbers.cache_misses;
  const rate = state.rates.at(-1) ?? {in: 0, out: 0};
  const all = [
    {name: "Sessions", value: count(numbers.sessions),
      note: status.slow_sessions ? `${count(status.slow_sessions)} slow` : "none slow"},
    {name: "Track Namespaces", value: count(numbers.namespaces), note: plural(numbers.tracks, "Track")},
    {name: "In", value: `${bytes(rate.in)}/s`, note: `${bytes(numbers.bytes_in)} in all`, line: "in"},
    {name: "Out", value: `${bytes(rate.out)}/s`, note: `${bytes(numbers.bytes_out)} in all`, line: "out"},
    {name: "Hit ratio", value: asked ? `${(100 * numbers.cache_hits / asked).toFixed(1)} %` : "–",
      note: `of ${count(asked)} fetches and fills`},
    {name: "Memory", value: bytes(numbers.cache_bytes), note: `of ${bytes(numbers.cache_capacity_bytes)}`,
      part: numbers.cache_bytes / numbers.cache_capacity_bytes},
  ];
  if (numbers.disk_capacity_bytes) {
    all.push({name: "Disk", value: bytes(numbers.disk_bytes),
      note: numbers.disk_writable ? `of ${bytes(numbers.disk_capacity_bytes)}` : "not writable now",
      part: numbers.disk_bytes / numbers.disk_capacity_bytes});
  }
  return all;
}

function makeCard(card) {
  const body = element("dd", {}, element("div", {class: "value"}), element("div", {class: "note"}));
  if (card.part !== undefined) body.append(element("progress", {max: "1", "aria-label": `${card.name} in use`}));
  if (card.line) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("viewBox", `0 0 ${SAMPLES - 1} 20`);
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    svg.append(document.createElementNS("http://www.w3.org/2000/svg", "polyline"));
    body.append(svg);
  }
  return element("div", {class: "card"}, element("dt", {}, card.name), body);
}

function updateCard(node, card) {
  setText(node.querySelector(".value"), card.value);
  setText(node.querySelector(".note"), card.note);
  const progress = node.querySelector("progress");
  if (progress) progress.value = Math.min(1, card.part);
  const line = node.querySelector("polyline");
  if (line) {
    const most = Math.max(1, ...state.rates.map((rate) => rate[card.line]));
    const first = SAMPLES - state.rates.length;
    line.setAttribute("points", state.rates
      .map((rate, index) => `${first + index},${(19 - 18 * rate[card.line] / most).toFixed(1)}`).join(" "));
  }
}

function noteRates(status) {
  const last = state.last;
  if (last && last.started === status.started && status.uptime > last.uptime) {
    const seconds = status.uptime - last.uptime;
    state.rates.push({
      in: Math.max(0, status.statistics.bytes_in - last.statistics.bytes_in) / seconds,
      out: Math.max(0, status.statistics.bytes_out - last.statistics.bytes_out) / seconds,
    });
    state.rates = state.rates.slice(-SAMPLES);
  } else if (last && last.started !== status.started) {
    state.rates = [];
  }
  state.last = status;
}

function drawHealth(text, kind) {
  const pill = byId("health");
  setText(pill, text);
  pill.className = `pill ${kind}`;
  document.title = kind === "good" ? "kvcs relay" : `${text} - kvcs relay`;
}

// Tables.

function drawNamespaces(page) {
  const searched = state.search ? `${count(page.matching)} of ` : "";
  setText(byId("namespace-count"), `${searched}${count(page.total)}`);
  keep(byId("namespace-rows"), page.shown, (item) => item.namespace, (item) => {
    const row = makeRow(["", "", "number", "number", "number", "number", "number", "number"])();
    const button = element("button", {type: "button", title: item.namespace}, shortName(item.namespace));
    button.addEventListener("click", () => choose(item.namespace));
    row.firstChild.append(button);
    return row;
  }, (row, item) => {
    row.classList.toggle("chosen", item.namespace === state.chosen);
    row.querySelector("button").setAttribute("aria-pressed", String(item.namespace === state.chosen));
    const kind = item.publishers ? tag("published", "good") : item.is_listed ? tag("kept") : tag("not listed");
    const texts = [count(item.publishers), count(item.deliveries),
      `${count(item.complete_tracks)} of ${count(item.tracks)}`, bytes(item.size_bytes), bytes(item.disk_bytes),
      item.idle === null ? "never" : item.idle < 1 ? "now" : `${duration(item.idle)} ago`];
    fill({children: [...row.children].slice(1)}, [kind, ...texts]);
  });
  const isEmpty = !page.shown.length;
  byId("no-namespaces").hidden = !isEmpty;
  if (isEmpty) setText(byId("no-namespaces"), state.search ? "No namespace matches." : "Nothing is published here yet.");
  byId("pages").hidden = page.matching <= PAGE;
  byId("previous").disabled = state.offset === 0;
  byId("next").disabled = state.offset + PAGE >= page.matching;
  setText(byId("page-place"), page.shown.length
    ? `${count(state.offset + 1)} to ${count(state.offset + page.shown.length)} of ${count(page.matching)}, used last first` : "");
}

function drawSessions(status) {
  const shown = status.sessions.length;
  const all = status.statistics.sessions;
  setText(byId("session-count"), shown < all ? `${count(shown)} of ${count(all)}` : count(all));
  byId("no-sessions").hidden = shown > 0;
  const kinds = ["", "", "", "number", "number", "number", "number", "number", "number"];
  keep(byId("session-rows"), status.sessions, (item) => item.session_id, makeRow(kinds), (row, item) => {
    let kind = tag("up to date", "good");
    if (item.behind >= status.slow_after) kind = tag(`slow, behind for ${duration(item.behind)}`, "bad");
    else if (item.is_going_away) kind = tag("going away");
    else if (item.behind) kind = tag("sending");
    fill(row, [item.address, item.implementation ?? "unknown", kind, duration(item.age), count(item.namespaces),
      count(item.deliveries), bytes(item.bytes_in), bytes(item.bytes_out), bytes(item.queued_bytes)]);
  });
}

function drawUpstreams(upstreams) {
  byId("upstreams").hidden = !upstreams.length;
  keep(byId("upstream-rows"), upstreams, (item) => item.url, makeRow(["", "", ""]), (row, item) => {
    const kind = item.is_used ? tag("in use", item.error ? "bad" : "good") : item.error ? tag("failed", "bad") : tag("standby");
    fill(row, [item.url, kind, item.error]);
  });
}

function drawCounters(numbers) {
  const lines = Object.entries(numbers).flatMap(([name, value]) =>
    value !== null && typeof value === "object"
      ? Object.entries(value).map(([part, number]) => [`${name} ${part}`, count(number)])
      : [[name, typeof value === "boolean" ? (value ? "yes" : "no") : count(value)]]);
  keep(byId("counter-rows"), lines, (line) => line[0], makeRow(["", "number"]), (row, line) => fill(row, line));
}

// Pictures.

function drawPicture(canvas, arrival) {
  const columns = arrival.columns;
  const cells = columns.reduce((most, column) => Math.max(most, column.length), 0);
  const width = Math.max(2, Math.min(12, Math.floor(640 / Math.max(1, columns.length))));
  const height = Math.max(3, Math.min(12, Math.floor(128 / Math.max(1, cells))));
  const gap = width > 3 ? 1 : 0;
  canvas.width = Math.max(1, columns.length * width);
  canvas.height = Math.max(1, cells * height);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const held = colour("--held"), some = colour("--some"), disk = colour("--disk"), lost = colour("--lost"), none = colour("--none");
  const paint = canvas.getContext("2d");
  columns.forEach((column, x) => {
    [...column].forEach((cell, y) => {
      if (cell === "-") return;
      paint.fillStyle = cell === "9" ? held : cell === "d" ? disk : cell === "x" ? lost : cell === "." || cell === "0" ? none : some;
      paint.fillRect(x * width, y * height, width - gap, height - gap);
    });
  });
}

function describe(track) {
  const {arrival} = track;
  const cells = arrival.columns.join("").replaceAll("-", "");
  const held = [...cells].filter((cell) => cell === "9" || cell === "d").length;
  const groups = arrival.groups === arrival.group_ids.length ? plural(arrival.groups, "Group")
    : `the last ${count(arrival.group_ids.length)} of ${plural(arrival.groups, "Group")}`;
  const part = cells.length ? Math.floor(100 * held / cells.length) : 0;
  return {groups, text: `${shortField(track.name)}: ${groups} of up to ${plural(arrival.objects, "Object")}; ${part} % of the cells are here`};
}

function drawTracks(detail) {
  byId("detail").hidden = false;
  setText(byId("detail-name"), detail.namespace);
  const tracks = detail.tracks.filter((track) => track.arrival.groups);
  const shown = state.last?.namespaces.shown.find((item) => item.namespace === detail.namespace);
  byId("on-disk-only").hidden = tracks.length > 0 || !shown?.disk_bytes;
  keep(byId("tracks"), tracks, (track) => track.name, (track) => element("figure", {},
    element("figcaption", {}, element("strong", {}, shortField(track.name)), element("span"), element("span", {class: "quiet"})),
    element("canvas", {role: "img"})), (node, track) => {
    const {groups, text} = describe(track);
    const [, kind, facts] = node.querySelector("figcaption").children;
    const label = track.is_complete ? tag("complete", "good") : track.is_received ? tag("arriving") : tag("incomplete");
    if (kind.textContent !== label.textContent) kind.replaceChildren(label);
    const per = track.arrival.objects_per_cell > 1 ? `, ${count(track.arrival.objects_per_cell)} Objects a cell` : "";
    setText(facts, `${groups}${per}, ${bytes(track.size_bytes)}, ${plural(track.subscriptions, "subscription")}, `
      + `${track.fetches === 1 ? "1 fetch" : `${count(track.fetches)} fetches`}`);
    const canvas = node.querySelector("canvas");
    if (canvas.getAttribute("aria-label") !== text) canvas.setAttribute("aria-label", text);
    drawPicture(canvas, track.arrival);
  });
}

// Asking.

async function ask(path) {
  const answer = await fetch(path, {signal: AbortSignal.timeout(TIMEOUT_MS), cache: "no-store"});
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

function draw(status) {
  document.body.classList.remove("stale");
  noteRates(status);
  if (status.is_ready) drawHealth("ready", "good");
  else drawHealth(status.faults.join(", "), status.is_draining ? "" : "bad");
  setText(byId("address"), status.address);
  setText(byId("uptime"), `up for ${duration(status.uptime)}`);
  setText(byId("version"), `kvcs ${status.version}`);
  keep(byId("cards"), cards(status), (card) => card.name, makeCard, updateCard);
  drawUpstreams(status.upstreams);
  if (!state.isChosenHere) state.chosen = status.namespaces.shown[0]?.namespace ?? "";
  drawNamespaces(status.namespaces);
  drawSessions(status);
  drawCounters(status.statistics);
}

let timer = null;
let isAsking = false;
let isAskedAgain = false;

async function refresh() {
  clearTimeout(timer);
  isAskedAgain = isAsking;
  if (isAsking || document.hidden) return;
  isAsking = true;
  let next = INTERVAL_MS;
  try {
    const query = new URLSearchParams({limit: PAGE, offset: state.offset, search: state.search});
    draw(await ask(`status.json?${query}`));
    if (state.chosen) drawTracks(await ask(`namespace.json?${new URLSearchParams({name: state.chosen})}`));
    else byId("detail").hidden = true;
  } catch (error) {
    console.warn(error);
    next = RETRY_MS;
    drawHealth("no answer", "bad");
    document.body.classList.add("stale");
  } finally {
    isAsking = false;
  }
  timer = setTimeout(refresh, isAskedAgain ? 0 : next);
}

function choose(namespace) {
  state.chosen = namespace;
  state.isChosenHere = true;
  refresh();
}

function turn(step) {
  state.offset = Math.max(0, state.offset + step * PAGE);
  refresh();
}

byId("previous").addEventListener("click", () => turn(-1));
byId("next").addEventListener("click", () => turn(1));
byId("search").addEventListener("input", (event) => {
  state.search = event.target.value.trim();
  state.offset = 0;
  refresh();
});
document.addEventListener("visibilitychange", refresh);
refresh();
