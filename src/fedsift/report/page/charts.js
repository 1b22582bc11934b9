// Charts of lines in SVG, with hover, zoom and keyboard; marks.js has the others.

const charts = []; // all that have to be drawn again when the window changes

// `repaint` replaces what is in the holder; the keyboard stays where it is.
function keepDrawn(holder, repaint) {
  const paint = (width) => {
    const focused = holder.contains(document.activeElement);
    repaint(width);
    if (focused) holder.querySelector("svg")?.focus();
  };
  const chart = { holder, paint, width: 0 };
  charts.push(chart);
  return chart;
}

function redraw(force) {
  for (const chart of charts) {
    const width = Math.floor(chart.holder.clientWidth);
    if (width && (force || width !== chart.width)) {
      chart.width = width;
      chart.paint(width);
    }
  }
}

// `left` follows the longest number on the axis.
const MARGIN = { left: 52, right: 26, top: 12, bottom: 42 };

// lines: [{name, colour, faint, band: [[x, low, high]], points: [[x, y]]}]
// how: {label, xName, yName, yRange, log, formatX, formatY, height}
function lineChart(how, findLines) {
  const holder = make("div", { class: "chart" });
  const reset = make("button", { type: "button", class: "small", hidden: true }, "Show all");
  const box = make("div", { class: "chart-box" }, holder, reset);
  const view = { zoom: null, place: null };
  const chart = keepDrawn(holder, (width) => paintLines(holder, width, how, findLines(), view));
  const again = () => {
    reset.hidden = view.zoom === null;
    chart.paint(holder.clientWidth);
  };
  reset.addEventListener("click", () => {
    view.zoom = null;
    again();
  });
  view.again = again;
  return { element: box, redraw: again };
}

function paintLines(holder, width, how, lines, view) {
  const height = how.height || Math.max(230, Math.min(340, width * 0.55));
  const xs = lines.flatMap((line) => line.points.map((point) => point[0]));
  const ys = lines.flatMap((line) => line.points.map((point) => point[1]));
  holder.replaceChildren();
  if (!xs.length) {
    holder.append(make("p", { class: "empty" }, "Nothing to draw: switch a method on."));
    return;
  }
  const whole = [Math.min(...xs), Math.max(...xs)];
  const [low, high] = view.zoom || (whole[0] === whole[1] ? [whole[0] - 0.5, whole[1] + 0.5] : whole);
  const [bottom, top] = how.yRange || widen(Math.min(...ys), Math.max(...ys));
  const longest = Math.max(...findTicks(bottom, top, 5).map((tick) => how.formatY(tick).length));
  MARGIN.left = 28 + 6.8 * longest;
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const flat = how.log && low > 0 ? Math.log10 : (x) => x;
  const scaleX = (x) => MARGIN.left + ((flat(x) - flat(low)) / (flat(high) - flat(low) || 1)) * inner.width;
  const unscaleX = (place) => {
    const at = flat(low) + ((place - MARGIN.left) / inner.width) * (flat(high) - flat(low));
    return how.log && low > 0 ? 10 ** at : at;
  };
  const scaleY = (y) => MARGIN.top + (1 - (y - bottom) / (top - bottom || 1)) * inner.height;
  const svg = draw("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, tabindex: "0", role: "application",
    "aria-label": `${how.label}. Arrow keys move along the curve, plus and minus zoom, Escape shows all.`,
  });
  paintAxes(svg, how, { low, high, bottom, top, scaleX, scaleY, inner, width, height });
  const clip = `clip-${charts.length}-${Math.random().toString(36).slice(2)}`;
  svg.append(draw("clipPath", { id: clip }, draw("rect", {
    x: MARGIN.left - 4, y: MARGIN.top - 6, width: inner.width + 8, height: inner.height + 12,
  })));
  const stage = draw("g", { "clip-path": `url(#${clip})` });
  svg.append(stage);
  for (const line of lines) if (line.band) paintBand(stage, line, scaleX, scaleY);
  const marks = lines.reduce((sum, line) => sum + line.points.length, 0) <= 3000;
  for (const line of lines) paintLine(stage, line, scaleX, scaleY, marks);
  const guide = draw("line", { class: "guide", y1: MARGIN.top, y2: MARGIN.top + inner.height, visibility: "hidden" });
  const selection = draw("rect", { class: "selection", y: MARGIN.top, height: inner.height, visibility: "hidden" });
  svg.append(guide, selection);
  holder.append(svg);
  listenToChart(svg, { how, lines, view, low, high, whole, scaleX, unscaleX, scaleY, guide, selection, inner });
}

function widen(low, high) {
  const room = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return [low >= 0 && low - room < 0 ? 0 : low - room, high + room];
}

function paintAxes(svg, how, box) {
  const { inner, scaleX, scaleY, height, width } = box;
  for (const tick of findTicks(box.bottom, box.top, 5)) {
    const y = scaleY(tick);
    svg.append(draw("line", { class: "grid", x1: MARGIN.left, x2: MARGIN.left + inner.width, y1: y, y2: y }));
    svg.append(draw("text", { class: "tick", x: MARGIN.left - 8, y: y + 4, "text-anchor": "end" }, how.formatY(tick)));
  }
  const wanted = Math.max(2, Math.floor(inner.width / 90));
  let ticks = how.log && box.low > 0 ? findLogTicks(box.low, box.high, Math.min(7, inner.width / 50)) : findTicks(box.low, box.high, wanted);
  if (ticks.length < 2) ticks = [box.low, box.high];
  if (how.whole) ticks = [...new Set(ticks.map(Math.round))];
  if (new Set(ticks.map(how.formatX)).size === 1) ticks = [ticks[Math.floor(ticks.length / 2)]];
  for (const tick of ticks) {
    const x = scaleX(tick);
    svg.append(draw("line", { class: "grid", x1: x, x2: x, y1: MARGIN.top, y2: MARGIN.top + inner.height }));
    svg.append(draw("text", { class: "tick", x, y: height - MARGIN.bottom + 18, "text-anchor": "middle" }, how.formatX(tick)));
  }
  svg.append(draw("text", { class: "axis", x: MARGIN.left + inner.width / 2, y: height - 6, "text-anchor": "middle" }, how.xName));
  svg.append(draw("text", { class: "axis", x: 0, y: 0, "text-anchor": "middle", transform: `translate(11 ${MARGIN.top + inner.height / 2}) rotate(-90)` }, how.yName));
}

function paintBand(stage, line, scaleX, scaleY) {
  const there = line.band.map(([x, low]) => `${scaleX(x).toFixed(1)},${scaleY(low).toFixed(1)}`);
  const back = [...line.band].reverse().map(([x, , high]) => `${scaleX(x).toFixed(1)},${scaleY(high).toFixed(1)}`);
  stage.append(draw("polygon", { class: "band", points: [...there, ...back].join(" "), fill: paintOf(line.colour) }));
}

function paintLine(stage, line, scaleX, scaleY, marks) {
  const points = line.points.map(([x, y]) => `${scaleX(x).toFixed(1)},${scaleY(y).toFixed(1)}`).join(" ");
  stage.append(draw("polyline", {
    class: line.faint ? "line faint" : "line", points, stroke: paintOf(line.colour), "stroke-dasharray": line.dash || null,
  }));
  if (!marks || line.faint) return;
  for (const [x, y] of line.points) {
    stage.append(draw("circle", {
      class: "mark", cx: scaleX(x).toFixed(1), cy: scaleY(y).toFixed(1), r: line.points.length > 60 ? 1.4 : 2.4,
      fill: paintOf(line.colour), "data-name": line.name, "data-x": x, "data-y": y,
    }));
  }
}

// Hover, drag to zoom, and the same by keyboard.
function listenToChart(svg, chart) {
  const { view, how, lines, guide } = chart;
  const tellX = how.tellX || how.formatX;
  const places = [...new Set(lines.flatMap((line) => line.points.map((p) => p[0])))]
    .filter((x) => x >= chart.low && x <= chart.high)
    .sort((a, b) => a - b);
  const acts = {
    places,
    tell(x, clientX, clientY) {
      const at = chart.scaleX(x);
      guide.setAttribute("x1", at);
      guide.setAttribute("x2", at);
      guide.setAttribute("visibility", "visible");
      const rows = lines.filter((line) => !line.faint).map((line) => findValue(line, x, chart)).filter(Boolean);
      rows.sort((a, b) => b.y - a.y);
      const shown = rows.slice(0, 12).map((row) => ({ name: row.name, colour: row.colour, value: how.formatTip ? how.formatTip(row.x, row.y) : how.formatY(row.y) }));
      tip.show([{ head: true, name: `${how.xName}: ${tellX(x)}` }, ...shown], clientX, clientY);
    },
    hide() {
      guide.setAttribute("visibility", "hidden");
      tip.hide();
    },
    zoom(from, to) {
      if (to - from <= 0) return;
      view.zoom = [Math.max(from, chart.whole[0]), Math.min(to, chart.whole[1])];
      if (view.zoom[1] <= view.zoom[0]) view.zoom = null;
      acts.hide();
      view.again();
    },
    showAll() {
      view.zoom = null;
      view.place = null;
      acts.hide();
      view.again();
    },
  };
  listenToPointer(svg, chart, acts);
  listenToKeys(svg, chart, acts);
}

function listenToPointer(svg, chart, acts) {
  const { selection } = chart;
  const placeOf = (event) => event.clientX - svg.getBoundingClientRect().left;
  const far = (place, x) => Math.abs(chart.scaleX(place) - x);
  const nearest = (x) => acts.places.reduce((best, place) => (far(place, x) < far(best, x) ? place : best));
  let dragFrom = null;
  const letGo = () => {
    dragFrom = null;
    selection.setAttribute("visibility", "hidden");
  };
  svg.addEventListener("pointermove", (event) => {
    const x = placeOf(event);
    if (acts.places.length) acts.tell(nearest(x), event.clientX, event.clientY);
    if (dragFrom === null) return;
    selection.setAttribute("x", Math.min(x, dragFrom));
    selection.setAttribute("width", Math.abs(x - dragFrom));
    selection.setAttribute("visibility", "visible");
  });
  svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") dragFrom = placeOf(event);
  });
  svg.addEventListener("pointerup", (event) => {
    const ends = [placeOf(event), dragFrom].sort((a, b) => a - b);
    const dragged = dragFrom !== null && ends[1] - ends[0] > 8;
    letGo();
    if (dragged) acts.zoom(...ends.map(chart.unscaleX));
  });
  svg.addEventListener("pointerleave", () => {
    letGo();
    acts.hide();
  });
  svg.addEventListener("dblclick", acts.showAll);
}

function listenToKeys(svg, chart, acts) {
  const { view } = chart, { places } = acts;
  svg.addEventListener("blur", acts.hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (step) {
      const now = places.indexOf(view.place);
      const next = now < 0 ? (step > 0 && step < 1e9 ? 0 : places.length - 1) : now + step;
      view.place = places[Math.max(0, Math.min(places.length - 1, next))];
      const box = svg.getBoundingClientRect();
      acts.tell(view.place, box.left + chart.scaleX(view.place), box.top + 20);
    } else if (event.key === "+" || event.key === "-") {
      const middle = view.place === null ? chart.unscaleX(chart.scaleX(chart.low) + chart.inner.width / 2) : view.place;
      const factor = event.key === "+" ? 0.25 : 1;
      const left = chart.scaleX(middle) - chart.inner.width * factor;
      acts.zoom(chart.unscaleX(left), chart.unscaleX(left + 2 * chart.inner.width * factor));
    } else if (event.key === "Escape") acts.showAll();
    else return;
    event.preventDefault();
  });
}

// The point of a line at x, or where lines have other places the last one before it.
function findValue(line, x, chart) {
  const before = line.points.filter((point) => point[0] <= x * (1 + 1e-9) + 1e-9);
  const point = before.length ? before[before.length - 1] : null;
  return point && { name: line.name, colour: line.colour, x: point[0], y: point[1] };
}
