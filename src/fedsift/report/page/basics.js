"use strict";
// Elements, numbers and the tooltip. Whatever comes from a run is only ever set as text.

const SVG = "http://www.w3.org/2000/svg";

// An element with attributes and children; a string among the children becomes a text.
function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// A text of a stranger: kept apart, so that its direction does not spill over.
function quote(text, most = 80) {
  const whole = String(text);
  const shown = whole.length > most ? whole.slice(0, most - 1) + "…" : whole;
  const attributes = shown === whole ? {} : { title: whole };
  return make("bdi", attributes, shown);
}

function shorten(text, most) {
  const whole = String(text);
  return whole.length > most ? whole.slice(0, most - 1) + "…" : whole;
}

// Without what stands in brackets at its end, and without its middle: names that begin alike mostly
// end in what they differ in.
function squeeze(text, most) {
  const given = String(text);
  const whole = given.length > most ? given.replace(/( \([^()]*\))+$/, "") : given;
  const tail = Math.floor((most - 1) / 2);
  return whole.length > most ? `${whole.slice(0, most - 1 - tail)}…${whole.slice(-tail)}` : whole;
}

// A colour of a method; on a dark page the dark ones are lighter, so that they can be seen.
function paintOf(colour) {
  if (document.documentElement.dataset.theme !== "dark" || !/^#[0-9a-f]{6}$/i.test(colour)) return colour;
  const parts = [1, 3, 5].map((place) => parseInt(colour.slice(place, place + 2), 16));
  const bright = 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  return bright < 100 ? `color-mix(in srgb, ${colour} 50%, white)` : colour;
}

function formatBytes(count) {
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (count < 1000 || unit === "GB") {
      return `${unit === "B" ? count.toFixed(0) : count.toFixed(1)} ${unit}`;
    }
    count /= 1000;
  }
  return "";
}

// As short as the scale of an axis needs it: "20 kB", "1.5 MB".
function formatTickBytes(count) {
  return formatBytes(count).replace(/\.0 /, " ");
}

function formatCount(count) {
  return Math.round(count).toLocaleString("en-US");
}

function formatShare(value, digits = 3) {
  return value === null || value === undefined ? "–" : value.toFixed(digits);
}

function formatPercent(share) {
  return share > 0 && share < 0.005 ? "<1%" : `${Math.round(share * 100)}%`;
}

function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}

// Round numbers that span from low to high.
function findTicks(low, high, wanted) {
  if (!(high > low)) return [low];
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const ticks = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-6; n++) {
    ticks.push(Number((n * step).toPrecision(12)));
  }
  return ticks;
}

function findLogTicks(low, high, most) {
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const n of [1, 2, 5]) {
      const tick = n * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  if (ticks.length < 3) return findTicks(low, high, 3);
  return ticks.length > most ? ticks.filter((tick) => /^1/.test(tick.toExponential())) : ticks;
}

// --- the tooltip, one for all charts ---

const tip = {
  show(rows, x, y) {
    const box = document.getElementById("tip");
    box.replaceChildren(
      ...rows.map((row) =>
        make(
          "div",
          { class: row.head ? "tip-head" : "tip-row" },
          row.colour ? swatch(row.colour) : null,
          make("span", { class: "tip-name" }, quote(row.name, 40)),
          row.value === undefined ? null : make("span", { class: "tip-value" }, row.value),
        ),
      ),
    );
    box.hidden = false;
    const room = { width: document.documentElement.clientWidth, height: window.innerHeight };
    const left = x + 14 + box.offsetWidth > room.width ? x - box.offsetWidth - 14 : x + 14;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, Math.min(y + 14, room.height - box.offsetHeight - 4))}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};

function swatch(colour) {
  const spot = make("span", { class: "swatch", "aria-hidden": "true" });
  spot.style.background = paintOf(colour);
  spot.dataset.colour = colour;
  return spot;
}

// A table that scrolls by itself, also by keyboard.
function makeTable(label, heads, rows, numbers = []) {
  const cell = (kind, content, place) =>
    make(kind, numbers.includes(place) ? { class: "number" } : {}, content);
  return make(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": label },
    make(
      "table",
      {},
      make("thead", {}, make("tr", {}, heads.map((head, i) => cell("th", head, i)))),
      make("tbody", {}, rows.map((row) => make("tr", {}, row.map((c, i) => cell("td", c, i))))),
    ),
  );
}

// A label and a select; `choose` gets the number of the option.
function makeChoice(label, options, chosen, choose) {
  const select = make("select", { onchange: (event) => choose(Number(event.target.value)) });
  options.forEach((option, i) =>
    select.append(make("option", { value: i, selected: i === chosen }, squeeze(option, 70))),
  );
  return make("label", { class: "choice" }, make("span", {}, label), select);
}
