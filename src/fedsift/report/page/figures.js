// The sections with figures. `page` is what the reader has chosen, and `page.data` what there is.

const page = { data: null, on: new Set(), seeds: false, run: 0 };

const DIRECTIONS = [{ name: "up" }, { name: "down" }];
const PARTS = [{ name: "header" }, { name: "indexes" }, { name: "values" }, { name: "votes, audits" }];

// By its method: runs of one name may differ in their settings.
function nameRun(run) {
  return `${run.method}, seed ${run.seed}`;
}

// The names of the classes of a run: their own, or numbers.
function nameClass(run, number) {
  return run.classes[number] === undefined ? String(number) : run.classes[number];
}

// --- the headline ---

function describeRuns(data) {
  const seeds = new Set(data.runs.map((run) => run.seed)).size;
  const rounds = Math.max(...data.runs.map((run) => run.rounds));
  const count = (n, word) => `${formatCount(n)} ${word}${n === 1 ? "" : "s"}`;
  return [count(data.methods.length, "method"), count(seeds, "seed"), count(data.runs.length, "run"), count(rounds, "round")];
}

function headline(data) {
  const best = [...data.methods].sort((a, b) => b.accuracy - a.accuracy)[0];
  const cheap = [...data.methods].sort((a, b) => a.uplink_bytes - b.uplink_bytes)[0];
  const tiles = [
    ["Best accuracy", formatShare(best.accuracy), best.method],
    ["Fewest bytes up", formatBytes(cheap.uplink_bytes), cheap.method],
    ["Runs", String(data.runs.length), describeRuns(data).join(", ")],
  ];
  const several = data.methods.length > 1;
  const gaps = data.methods.some((method) => method.gap);
  const heads = ["method", "seeds", data.accuracy_name, ...(gaps ? ["gap to", "gap, seed by seed"] : []), "per upload", "all up", "all down", ...(several ? [`up until ${formatShare(data.target)}`] : [])];
  const rows = data.methods.map((method) => {
    const spread = method.accuracy_sd === null ? "" : ` ± ${method.accuracy_sd.toFixed(3)}`;
    const told = method.gap ? `${method.gap_text}, ${method.gap.ahead} of ${method.gap.seeds.length}` : "–";
    return [
      make("span", { class: "named" }, swatch(method.colour), quote(method.method, 60)),
      String(method.seeds.length),
      make("span", { class: "accuracy" }, `${formatShare(method.accuracy)}${spread}`),
      ...(gaps ? [method.gap ? make("span", { class: "against" }, make("bdi", { title: method.gap.against }, squeeze(method.gap.against, 34))) : "–", told] : []),
      formatBytes(method.uplink_bytes_per_upload), formatBytes(method.uplink_bytes), formatBytes(method.downlink_bytes),
      ...(several ? [method.uplink_bytes_to_target === null ? "not by all" : formatBytes(method.uplink_bytes_to_target)] : []),
    ];
  });
  const numbers = heads.map((_, i) => i).filter((i) => i > 0 && heads[i] !== "gap to");
  return section("overview", "Overview", null, [
    make("div", { class: "tiles" }, tiles.map(([name, value, about]) => make("div", { class: "tile" }, make("p", { class: "tile-name" }, name), make("p", { class: "tile-value" }, value), make("p", { class: "tile-about" }, quote(about, 60))))),
    makeTable("Methods side by side", heads, rows, numbers),
    make("p", { class: "note" }, explain(data)),
    listStates(data),
  ]);
}

function explain(data) {
  const unfair = data.unpaired.length ? ` Not a paired comparison: the runs differ in ${data.unpaired.join(", ")}.` : "";
  return `Accuracy is ${data.settled.startsWith("mean") ? "the" : "that"} ${data.settled}. What the figures are: ${data.explain}${unfair}`;
}

function listStates(data) {
  const order = ["running", "failed", "stopped", "finished"];
  const odd = data.runs.filter((run) => run.state.name !== "finished" || run.state.resumed)
    .sort((a, b) => order.indexOf(a.state.name) - order.indexOf(b.state.name));
  const rows = odd.map((run) => [quote(nameRun(run), 60), describeState(run), `${run.rounds} of ${run.planned}`, run.state.why ? quote(run.state.why, 200) : run.state.name === "stopped" ? make("code", {}, quote(run.resume, 120)) : ""]);
  const early = data.waiting.map((run) => [quote(run.name, 60), run.state, "0", ""]);
  if (!rows.length && !early.length) return null;
  const table = makeTable("States of runs", ["run", "state", "rounds", ""], [...rows, ...early]);
  const title = "Runs that are under way, stopped or resumed";
  if (rows.length + early.length <= 8) return make("div", { id: "states" }, make("h3", {}, title), table);
  const counts = new Map();
  for (const name of [...odd.map((run) => run.state.name), ...early.map(() => "waiting")]) counts.set(name, (counts.get(name) || 0) + 1);
  const told = [...counts].map(([name, count]) => `${count} ${name === "finished" ? "finished after a resume" : name}`).join(", ");
  const list = make("details", { id: "states", ontoggle: () => { page.states = list.open; } }, make("summary", {}, `${title}: ${told}`), table);
  list.open = Boolean(page.states);
  return list;
}

function describeState(run) {
  const again = run.state.resumed ? `, resumed ${run.state.resumed === 1 ? "once" : `${run.state.resumed} times`}` : "";
  return make("span", { class: `state state-${run.state.name}` }, run.state.name + again);
}

// --- accuracy ---

function legend(data, redrawAll) {
  const buttons = data.methods.map((method, i) => {
    const button = make("button", { type: "button", class: "toggle", "aria-pressed": String(page.on.has(i)), "data-method": method.method,
      onclick: () => {
        if (page.on.has(i)) page.on.delete(i);
        else page.on.add(i);
        button.setAttribute("aria-pressed", String(page.on.has(i)));
        redrawAll();
      } }, swatch(method.colour), make("bdi", { title: method.method }, squeeze(method.method, 48)));
    return button;
  });
  const several = data.methods.some((method) => method.runs.length > 1);
  const seeds = make("input", { type: "checkbox", id: "seeds", onchange: (event) => { page.seeds = event.target.checked; redrawAll(); } });
  seeds.checked = page.seeds;
  return make("div", { class: "legend", role: "group", "aria-label": "Methods" }, buttons,
    several ? make("label", { class: "check" }, seeds, "single seeds") : null);
}

// A line for each method that is on; x of a point of a run, and its accuracy.
function methodLines(data, findX) {
  return data.methods.flatMap((method, i) => {
    if (!page.on.has(i)) return [];
    const runs = method.runs.map((number) => data.runs[number]);
    const points = [], band = [];
    for (const number of runs[0].at) {
      const places = runs.map((run) => run.at.indexOf(number));
      if (places.includes(-1)) continue; // a run that stopped early
      const x = mean(runs.map((run, i) => findX(run, places[i])));
      const found = runs.map((run, i) => run.accuracy[places[i]]);
      points.push([x, mean(found)]);
      band.push([x, Math.min(...found), Math.max(...found)]);
    }
    const line = { name: method.method, colour: method.colour, points, band: runs.length > 1 ? band : null };
    if (!page.seeds || runs.length < 2) return [line];
    const single = runs.map((run) => ({ name: nameRun(run), colour: method.colour, faint: true, points: run.accuracy.map((y, k) => [findX(run, k), y]) }));
    return [...single, line];
  });
}

function curves(data) {
  const how = { yName: data.accuracy_name, formatY: (y) => formatShare(y, 2), formatTip: (x, y) => formatShare(y, 4) };
  const longest = data.runs.reduce((best, run) => (run.rounds > best.rounds ? run : best));
  const highest = Math.max(...data.runs.flatMap((run) => run.accuracy));
  const range = [0, highest > 0.5 ? 1 : Math.max(0.1, highest * 1.15)];
  const rounds = lineChart({ ...how, label: "Accuracy against rounds", xName: "round", formatX: formatCount, yRange: range, whole: true }, () => methodLines(data, (run, k) => run.at[k] + 1));
  const bytes = lineChart({ ...how, label: "Accuracy against bytes uploaded", xName: "bytes uploaded by all clients", formatX: formatTickBytes, tellX: formatBytes, log: true, yRange: range,
    formatTip: (x, y) => `${formatShare(y, 4)} at ${formatBytes(x)}` }, () => methodLines(data, (run, k) => run.all_up[k]));
  const redrawAll = () => { rounds.redraw(); bytes.redraw(); };
  const several = data.methods.some((method) => method.runs.length > 1);
  return section("accuracy", "Accuracy", null, [
    legend(data, redrawAll),
    make("div", { class: "pair" }, figure("curve-rounds", "Against rounds", rounds.element), figure("curve-bytes", "Against bytes", bytes.element)),
    make("p", { class: "note" }, `${several ? "Line: mean over seeds; band: lowest to highest seed. " : ""}Drag to zoom, double-click for all. By keyboard: Tab to a chart, arrow keys; here + and - zoom, and Escape shows all.${tellFewer(longest.at, longest.rounds)}`),
  ]);
}

// Said wherever not all rounds are drawn.
function tellFewer(at, rounds) {
  return at.length < rounds ? ` Of ${formatCount(rounds)} rounds ${formatCount(at.length)} are drawn, evenly spaced, to keep the page small.` : "";
}

function noteFewer(run) {
  return run.at.length < run.rounds ? make("p", { class: "note" }, tellFewer(run.at, run.rounds)) : null;
}

// --- bytes ---

function bytes(data) {
  const run = data.runs[page.run];
  const totals = barChart({ label: "Bytes of a run by direction", parts: DIRECTIONS, format: formatBytes, row: 26 }, () =>
    data.methods.map((method) => ({ name: method.method, parts: [method.uplink_bytes, method.downlink_bytes] })));
  const perRound = lineChart({ label: "Bytes per round", xName: "round", yName: "bytes", formatX: formatCount, formatY: formatTickBytes, formatTip: (x, y) => formatBytes(y), whole: true }, () => [
    { name: "up", colour: "var(--part-0)", points: run.at.map((number, k) => [number + 1, run.up[k]]) },
    { name: "down", colour: "var(--part-1)", points: run.at.map((number, k) => [number + 1, run.down[k]]) },
  ]);
  const where = barChart({ label: "Where the bytes go", parts: PARTS, format: formatBytes, row: 30, shares: true, empty: "This run was not recorded, so the parts are not known." }, () => {
    if (!run.said || !run.said.at.length) return [];
    return ["up", "down"].map((way) => ({ name: way, parts: run.said.parts[way] }));
  });
  const clients = barChart({ label: "Bytes per client", parts: DIRECTIONS, format: formatBytes, row: 21 }, () =>
    run.senders.map(([id, name, up, down]) => ({ name: nameClient({ id, name }), parts: [up, down] })));
  const shown = run.senders.length;
  const some = shown < run.client_count ? `The ${shown} of ${formatCount(run.client_count)} clients with the most bytes` : "Each client";
  return section("bytes", "Bytes", "bytes", [
    make("div", { class: "pair" },
      figure("bytes-methods", "All methods: a whole run, mean over seeds", totals.element, makeKey(DIRECTIONS)),
      figure("bytes-parts", `Where they go: ${squeeze(nameRun(run), 60)}`, where.element, makeKey(PARTS), listParts(run))),
    make("div", { class: "pair" },
      figure("bytes-rounds", "Per round, all clients together", perRound.element, makeKey(DIRECTIONS), noteFewer(run)),
      figure("bytes-clients", `${some}, all rounds`, clients.element, makeKey(DIRECTIONS))),
  ]);
}

// "up: header 880 B (1%), indexes 1.3 kB (1%), values 96.0 kB (98%)"
function listParts(run) {
  if (!run.said || !run.said.at.length) return null;
  return make("ul", { class: "plain" }, ["up", "down"].map((way) => {
    const sums = run.said.parts[way];
    const all = Math.max(1, sums.reduce((a, b) => a + b, 0));
    const told = PARTS.map((part, i) => (sums[i] ? `${part.name} ${formatBytes(sums[i])} (${formatPercent(sums[i] / all)})` : null)).filter(Boolean);
    return make("li", {}, `${way}: ${told.join(", ") || "nothing"}`);
  }));
}

function nameClient(client) {
  return client.name ? `${client.id} ${client.name}` : `client ${client.id}`;
}

// --- classes and clients ---

function classes(data) {
  const run = data.runs[page.run];
  const parts = [];
  if (run.by_class) {
    const names = run.by_class.rows[0].map((_, c) => nameClass(run, c));
    const cells = names.map((_, c) => run.by_class.rows.map((row) => row[c]));
    const more = run.by_class.classes > names.length ? ` (${names.length} of ${run.by_class.classes} classes)` : "";
    parts.push(figure("class-rounds", `Accuracy of each class over rounds${more}`, heatChart(
      { label: "Accuracy of each class over rounds", rowName: "class", columnName: "round", format: (v) => formatShare(v) },
      names, run.by_class.at.map((number) => String(number + 1)), cells), make("p", { class: "note" }, `The stronger the colour, the better.${tellFewer(run.by_class.at, run.rounds)}`)));
  }
  if (run.confusion) {
    const names = run.confusion.map((_, c) => nameClass(run, c));
    const large = names.length > 14;
    const table = large
      ? heatChart({ label: "Confusion", rowName: "true", columnName: "predicted", format: formatCount, shade: (v) => Math.min(1, v / Math.max(1, ...run.confusion.flat())) }, names, names, run.confusion)
      : shadeTable("Confusion matrix", "true \\ predicted", names, run.confusion);
    const shown = figure("confusion", "Confusion after the last round", table, make("p", { class: "note" }, "Rows: true classes. Columns: predicted ones. Counts, added up over the models."));
    shown.classList.toggle("wide", !large && Math.max(...names.map((name) => name.length)) > 4 && names.length > 4);
    parts.push(shown);
  }
  if (run.confusion_left_out) parts.push(make("p", { class: "empty" }, "The confusion of its classes is left out to keep the page small: report fewer runs."));
  if (!parts.length) parts.push(make("p", { class: "empty" }, "Its models are at the clients, so nobody has measured single classes."));
  return section("classes", "Classes", "classes", [make("div", { class: "pair" }, parts)]);
}

function partition(data) {
  const run = data.runs[page.run];
  const known = run.clients.filter((client) => client.labels.some((n) => n));
  if (!known.length) {
    return section("partition", "Clients and their data", "partition", [make("p", { class: "empty" }, "The labels are known to the clients alone, or there are none.")]);
  }
  const width = known[0].labels.length;
  const names = Array.from({ length: width }, (_, c) => nameClass(run, c));
  const shown = known.length < run.client_count ? `${known.length} of ${formatCount(run.client_count)} clients` : `All ${known.length} clients`;
  const most = Math.max(...known.flatMap((client) => client.labels));
  const chart = heatChart({ label: "Private samples of each client by class", rowName: "", columnName: "class", format: (v) => `${formatCount(v)} samples`, shade: (v) => Math.sqrt(v / most) },
    known.map(nameClient), names, known.map((client) => client.labels.map((n) => n || null)));
  return section("partition", "Clients and their data", "partition", [
    figure("partition-chart", `${shown}: private samples of each class`, chart, make("p", { class: "note" }, `The stronger the colour, the more; ${formatCount(most)} is the most of one class at one client.`)),
  ]);
}

// --- labels, and who is missing ---

function labels(data) {
  const run = data.runs[page.run];
  const lines = [["uploaded", run.right, "var(--part-0)"], ["taught by the server", run.taught, "var(--part-1)"]]
    .map(([name, values, colour]) => ({ name, colour, points: run.at.map((number, k) => [number + 1, values[k]]).filter((p) => p[1] !== null) }))
    .filter((line) => line.points.length);
  const parts = [];
  if (lines.length) {
    const chart = lineChart({ label: "Share of right soft labels", xName: "round", yName: "share right", formatX: formatCount, formatY: (y) => formatShare(y, 2), formatTip: (x, y) => formatShare(y, 4), yRange: [0, 1], whole: true }, () => lines);
    parts.push(figure("labels-right", "How many soft labels are right", chart.element, makeKey([{ name: "uploaded" }, { name: "taught by the server" }])));
  }
  const said = run.said;
  if (said && said.labelled.some((n) => n !== null)) {
    const pick = (values) => said.at.map((number, k) => [number + 1, values[k]]).filter((p) => p[1] !== null);
    const total = data.samples[said.sheet].public;
    const chart = lineChart({ label: "Public samples with a label", xName: "round", yName: "public samples", formatX: formatCount, formatY: formatCount, yRange: [0, total], whole: true }, () => [
      { name: "with a label", colour: "var(--part-0)", points: pick(said.labelled) },
      { name: "contested", colour: "var(--part-1)", points: pick(said.contested) },
    ]);
    parts.push(figure("labels-cover", `Of ${formatCount(total)} public samples`, chart.element, makeKey([{ name: "with a label" }, { name: "contested: clients name different classes" }])));
  }
  if (!parts.length) parts.push(make("p", { class: "empty" }, "This run sends no soft labels, or was not recorded."));
  return section("labels", "Soft labels", "labels", [make("div", { class: "pair" }, parts), noteFewer(run)]);
}

function missing(data) {
  const rows = data.runs.flatMap((run) => run.missing.rows.map(([round, client, why]) => [quote(nameRun(run), 50), String(round + 1), String(client), quote(why, 300)]));
  const count = data.runs.reduce((sum, run) => sum + run.missing.count, 0);
  if (!count) return section("missing", "Missing clients", null, [make("p", { class: "empty" }, "Every client that was asked has answered.")]);
  const some = rows.length < count ? ` The last ${formatCount(rows.length)} are listed.` : "";
  return section("missing", "Missing clients", null, [
    make("p", {}, `${count === 1 ? "Once" : `${formatCount(count)} times`} a client did not answer, or its upload was refused or left out.${some}`),
    makeTable("Missing clients", ["run", "round", "client", "why"], rows.slice(-200), [1, 2]),
  ]);
}

// --- settings ---

function settings(data) {
  const run = data.runs[page.run];
  const parts = [];
  if (data.differences.length && data.runs.length > 1) {
    const few = data.methods.slice(0, 24);
    const heads = ["setting", ...few.map((method) => quote(squeeze(method.method, 40), 40))];
    const valuesOf = (row, method) => [...new Set(method.runs.map((number) => row.values[number]))].join(", ");
    parts.push(make("h3", {}, "What the runs differ in"), makeTable("Differences", heads, data.differences.map((row) => [make("code", {}, row.key), ...few.map((method) => quote(valuesOf(row, method), 60))])));
    if (few.length < data.methods.length) parts.push(make("p", { class: "note" }, `The first ${few.length} of ${data.methods.length} methods.`));
  }
  const list = (values) => make("dl", { class: "settings" }, Object.entries(values).map(([key, value]) => make("div", {}, make("dt", {}, quote(key, 40)), make("dd", {}, quote(value, 200)))));
  parts.push(
    make("h3", {}, "The command that repeats it"), make("pre", { class: "command", tabindex: "0" }, make("code", { id: "command" }, run.command || "unknown")),
    make("details", {}, make("summary", {}, `All settings of ${shorten(nameRun(run), 60)}`), list({ ...run.config, ...data.shared.config })),
    make("details", {}, make("summary", {}, "Environment"), list({ folder: run.folder, ...run.environment, ...data.shared.environment })),
  );
  return section("settings", "Settings", "settings", parts);
}

// --- the frame of a section ---

function section(id, title, chooser, children) {
  const head = make("div", { class: "section-head" }, make("h2", { id: `${id}-title` }, title), chooser ? runChoice(id) : null);
  return make("section", { id, "aria-labelledby": `${id}-title` }, head, children);
}

function runChoice(id) {
  if (page.data.runs.length < 2) return null;
  const choice = makeChoice("Run", page.data.runs.map(nameRun), page.run, (number) => chooseRun(number, id));
  choice.querySelector("select").dataset.of = id;
  return choice;
}

function figure(id, title, ...children) {
  return make("figure", { id }, make("figcaption", {}, title), children);
}
