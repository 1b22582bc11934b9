// The conversation: what one client chose and said in one round, and what became of it.

const talk = { round: null, client: null, view: "client" };
const VIEWS = [["client", "What a client says"], ["disputed", "Contested samples"], ["unlabelled", "Samples nobody labels"]];

function conversation(data) {
  const run = data.runs[page.run];
  const said = run.said;
  const rounds = said ? Object.keys(said.rounds).map(Number).sort((a, b) => a - b) : [];
  if (!rounds.length) {
    return section("conversation", "The conversation", "conversation", [make("p", { class: "empty" }, said && said.recorded ? "What was said in this run is left out to keep the page small: report fewer runs." : "This run sends no soft labels, or was not recorded (record=false).")]);
  }
  const sheet = data.samples[said.sheet];
  const places = new Map(sheet.samples.map((sample, place) => [sample, place]));
  if (!rounds.includes(talk.round)) talk.round = rounds[rounds.length - 1];
  const longest = Math.max(1, ...run.classes.map((name) => name.length));
  const stage = make("div", { id: "talk", class: longest > 7 ? "long-names" : null });
  stage.style.setProperty("--name", `${Math.max(1.6, Math.min(5.8, 0.62 * longest)).toFixed(1)}em`);
  if (sheet.kind === "images") {
    const from = sheet.tiles ? data.pictures[sheet.shared] : sheet;
    stage.style.setProperty("--pictures", `url("data:image/${from.sheet === "png" ? "png" : "jpeg"};base64,${from.picture}")`);
  }
  const controls = make("div", { class: "controls" });
  const paint = () => {
    const row = said.rounds[talk.round];
    const clients = Object.keys(row.clients).map(Number).sort((a, b) => a - b);
    if (!clients.includes(talk.client)) talk.client = clients[0];
    controls.replaceChildren(...talkControls(run, rounds, clients, paint));
    stage.replaceChildren(...talkCards(run, row, sheet, places));
  };
  paint();
  const some = rounds.length < said.recorded ? ` ${rounds.length} of ${said.recorded} rounds are in this page, evenly spaced, to keep it small.` : "";
  const left = countLeftOut(sheet);
  const without = left ? ` Of ${formatCount(left)} of ${formatCount(sheet.samples.length)} samples the page has the number alone, to keep it small.` : "";
  return section("conversation", "The conversation", "conversation", [
    make("p", { class: "note" }, `A client chooses public samples and says what it thinks of them. The server makes one soft label of all that is said, and teaches it. Kept of a round: at most 16 clients with 16 soft labels each, three classes of each.${some}${without}`),
    controls, stage,
  ]);
}

function countLeftOut(sheet) {
  const shown = sheet.kind === "images" ? sheet.tiles || [] : sheet[sheet.kind];
  return shown.filter((one) => one === null || one < 0).length;
}

function talkControls(run, rounds, clients, paint) {
  const keep = (act) => (event) => {
    const id = event.currentTarget.id;
    act(event);
    paint();
    const again = document.getElementById(id);
    if (again) again.focus();
  };
  const place = rounds.indexOf(talk.round);
  const slider = make("input", { type: "range", id: "talk-round", min: 0, max: rounds.length - 1, value: place, step: 1, "aria-valuetext": `round ${talk.round + 1}`,
    oninput: keep((event) => { talk.round = rounds[Number(event.target.value)]; }) });
  slider.disabled = rounds.length < 2;
  const views = VIEWS.map(([view, name]) => make("button", { type: "button", class: "tab", id: `talk-${view}`, "aria-pressed": String(talk.view === view), onclick: keep(() => { talk.view = view; }) }, name));
  const names = new Map(run.clients.map((client) => [client.id, client]));
  const buttons = clients.map((id) => make("button", { type: "button", class: "chip", id: `talk-client-${id}`, "aria-pressed": String(talk.client === id), title: names.has(id) ? nameClient(names.get(id)) : null,
    onclick: keep(() => { talk.client = id; }) }, names.has(id) && names.get(id).name ? shorten(nameClient(names.get(id)), 24) : String(id)));
  return [
    make("label", { class: "choice wide" }, make("span", {}, `Round ${talk.round + 1}`), slider),
    make("div", { class: "tabs", role: "group", "aria-label": "What to see" }, views),
    talk.view === "client" ? make("div", { class: "chips", role: "group", "aria-label": "Client" }, make("span", {}, "Client"), buttons) : null,
  ].filter(Boolean);
}

function talkCards(run, row, sheet, places) {
  if (talk.view === "unlabelled") {
    const left = sheet.public - row.labelled;
    return [make("p", {}, `Nobody labels ${formatCount(left)} of ${formatCount(sheet.public)} public samples in this round.${row.unlabelled.length ? " Some of them:" : ""}`),
      make("div", { class: `cards small-cards cards-${sheet.kind}` }, row.unlabelled.map((sample) => sampleCard(run, sheet, places, sample, [])))];
  }
  if (talk.view === "disputed") {
    return [make("p", {}, `On ${formatCount(row.contested)} samples clients name different classes.${row.disputed.length ? " The most contested ones of those that are kept:" : ""}`),
      make("div", { class: `cards cards-${sheet.kind}` }, row.disputed.map((sample) => sampleCard(run, sheet, places, sample, [...saysOf(row, sample), ...afterwards(row, sample)])))];
  }
  const told = row.clients[talk.client];
  const samples = Object.keys(told.said).map(Number);
  const right = sheet.truth ? samples.filter((sample) => places.has(sample) && told.said[sample][0] === sheet.truth[places.get(sample)]).length : null;
  const score = right === null ? "" : ` ${right} of the ${samples.length} below are right.`;
  return [make("p", { id: "talk-said" }, `Client ${talk.client} uploads ${formatCount(told.rows)} soft labels in round ${talk.round + 1}.${score}`),
    make("div", { class: `cards cards-${sheet.kind}` }, samples.map((sample) => sampleCard(run, sheet, places, sample, [["client", told.said[sample]], ...afterwards(row, sample)])))];
}

function saysOf(row, sample) {
  return Object.entries(row.clients).filter(([, told]) => told.said[sample]).slice(0, 4).map(([id, told]) => [`client ${id}`, told.said[sample]]);
}

function afterwards(row, sample) {
  return [["server", row.aggregate[sample]], ["student", row.student[sample]]].filter(([, label]) => label);
}

function sampleCard(run, sheet, places, sample, said) {
  const place = places.get(sample);
  const truth = sheet.truth && place !== undefined ? sheet.truth[place] : null;
  const shown = place === undefined ? null : showSample(sheet, place);
  return make("article", { class: `card card-${sheet.kind}`, "data-sample": sample },
    make("div", { class: "card-head" }, shown, make("div", {}, make("p", { class: "sample-name" }, `sample ${sample}`), truth === null ? null : make("p", { class: "truth" }, "truth: ", quote(nameClass(run, truth), 24)))),
    said.map(([who, label]) => saysRow(run, who, label, truth)));
}

function saysRow(run, who, label, truth) {
  const bars = [];
  for (let i = 0; i < label.length; i += 2) {
    const bar = make("span", { class: `bar-fill${i ? " second" : ""}${truth !== null && label[i] === truth ? " right" : ""}` });
    bar.style.width = `${label[i + 1] / 10}%`;
    bars.push(make("span", { class: "bar-row", "data-class": label[i], "data-share": label[i + 1] }, make("span", { class: "bar-name" }, make("bdi", { title: nameClass(run, label[i]) }, shorten(nameClass(run, label[i]), 12))), make("span", { class: "bar-track" }, bar), make("span", { class: "bar-share" }, formatPercent(label[i + 1] / 1000))));
  }
  const verdict = truth === null ? "" : label[0] === truth ? " ✓" : " ✗";
  return make("div", { class: "says" }, make("p", { class: "who" }, who + verdict), bars);
}

function showSample(sheet, place) {
  if (sheet.kind !== "images" && sheet[sheet.kind][place] === null) return null;
  if (sheet.kind === "texts") return make("p", { class: "sample-text", dir: "auto" }, sheet.texts[place]);
  if (sheet.kind === "rows") {
    return make("dl", { class: "sample-row" }, sheet.rows[place].map(([name, value]) => make("div", {}, make("dt", {}, quote(name, 24)), make("dd", {}, quote(value, 24)))));
  }
  if (sheet.kind === "series") return showSeries(sheet.series[place]);
  const from = sheet.tiles ? page.data.pictures[sheet.shared] : sheet;
  const spotted = sheet.tiles ? sheet.tiles[place] : place;
  if (spotted < 0) return null;
  const [width, height] = sheet.tile;
  const size = window.innerWidth <= 640 ? 48 : 64, scale = size / width;
  const spot = make("span", { class: "thumb", role: "img", "aria-label": `picture of public sample` });
  spot.style.backgroundSize = `${from.columns * width * scale}px auto`;
  spot.style.backgroundPosition = `-${(spotted % from.columns) * size}px -${Math.floor(spotted / from.columns) * height * scale}px`;
  spot.style.width = `${size}px`;
  spot.style.height = `${height * scale}px`;
  return spot;
}

function showSeries(values) {
  const low = Math.min(...values), high = Math.max(...values);
  const points = values.map((v, i) => `${(i / Math.max(1, values.length - 1)) * 96},${36 - ((v - low) / (high - low || 1)) * 32}`).join(" ");
  return draw("svg", { width: 96, height: 40, viewBox: "0 0 96 40", role: "img", "aria-label": "series" }, draw("polyline", { class: "line", points, stroke: "var(--part-0)" }));
}
