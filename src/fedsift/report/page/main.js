// The page as a whole: drawn once, and where it is live again with every round.

const SECTIONS = [
  ["overview", "Overview", headline], ["accuracy", "Accuracy", curves], ["bytes", "Bytes", bytes],
  ["conversation", "Conversation", conversation], ["labels", "Soft labels", labels], ["classes", "Classes", classes],
  ["partition", "Clients", partition], ["missing", "Missing", missing], ["settings", "Settings", settings],
];
const OF_A_RUN = ["bytes", "conversation", "labels", "classes", "partition", "settings"];

function show(data) {
  const first = page.data === null;
  page.data = data;
  page.run = Math.min(page.run, Math.max(0, data.runs.length - 1));
  const main = document.getElementById("main");
  charts.length = 0;
  if (!data.runs.length) {
    main.replaceChildren(make("h1", {}, "No finished round yet"), listWaiting(data));
    return;
  }
  for (const method of data.methods) for (const number of method.runs) data.runs[number].method = method.method;
  if (first) {
    data.methods.forEach((_, i) => page.on.add(i));
    const said = data.runs.findIndex((run) => run.said && Object.keys(run.said.rounds).length);
    page.run = Math.max(0, said);
  } else data.methods.forEach((_, i) => { if (i >= page.count) page.on.add(i); });
  page.count = data.methods.length;
  const heading = make("div", { class: "title" }, make("h1", {}, quote(nameReport(data), 90)), make("p", { class: "subtitle" }, describeRuns(data).join(" · ")));
  main.replaceChildren(heading, ...SECTIONS.map(([, , build]) => build(data)));
  document.title = `${shorten(nameReport(data), 60)} – fedsift report`;
  redraw(true);
}

function nameReport(data) {
  const names = [...new Set(data.runs.map((run) => run.name.split(" ")[0]))];
  return names.length <= 3 ? names.join(", ") : `${names.slice(0, 3).join(", ")} and ${names.length - 3} more`;
}

function listWaiting(data) {
  return makeTable("Runs that have begun", ["run", "state"], data.waiting.map((run) => [quote(run.name), run.state]));
}

function chooseRun(number, from) {
  page.run = number;
  for (const [id, , build] of SECTIONS) {
    if (OF_A_RUN.includes(id)) document.getElementById(id).replaceWith(build(page.data));
  }
  for (let i = charts.length - 1; i >= 0; i--) if (!charts[i].holder.isConnected) charts.splice(i, 1);
  redraw(false);
  const select = document.querySelector(`select[data-of="${from}"]`);
  if (select) select.focus();
}

// --- light and dark ---

function chooseTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", String(dark));
  for (const spot of document.querySelectorAll("[data-colour]")) spot.style.background = paintOf(spot.dataset.colour);
  redraw(true);
}

function startTheme() {
  chooseTheme(window.matchMedia("(prefers-color-scheme: dark)").matches);
  document.getElementById("theme").addEventListener("click", () => chooseTheme(document.documentElement.dataset.theme !== "dark"));
}

// --- live: the server says that there is something new, and the page asks for it ---

function listen() {
  const told = make("p", { class: "live", id: "live", role: "status" }, "live");
  document.querySelector(".bar").insertBefore(told, document.getElementById("theme"));
  const query = window.location.search;
  const source = new EventSource(`events${query}`);
  let busy = false, again = false;
  const update = async () => {
    if (busy) { again = true; return; }
    busy = true;
    do {
      again = false;
      try {
        const answer = await fetch(`data.json${query}`, { cache: "no-store" });
        if (answer.ok) showKeepingPlace(await answer.json());
      } catch { told.textContent = "not connected"; }
    } while (again);
    busy = false;
  };
  source.addEventListener("news", update);
  source.addEventListener("open", () => { told.textContent = "live"; });
  source.addEventListener("error", () => { told.textContent = "not connected"; });
}

function showKeepingPlace(data) {
  const focus = document.activeElement && document.activeElement.id;
  const scroll = window.scrollY;
  show(data);
  window.scrollTo(0, scroll);
  const element = focus && document.getElementById(focus);
  if (element) element.focus({ preventScroll: true });
}

function start() {
  startTheme();
  document.getElementById("nav").append(...SECTIONS.map(([id, name]) => make("a", { href: `#${id}` }, name)));
  const data = JSON.parse(document.getElementById("data").textContent);
  document.getElementById("footer").append(make("p", {}, `Made by fedsift ${data.fedsift}. All of it is in this page; no host is asked.`));
  show(data);
  new ResizeObserver(() => redraw(false)).observe(document.getElementById("main"));
  if (document.body.dataset.live === "true") listen();
}

start();
