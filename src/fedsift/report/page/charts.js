// Charts in SVG: lines with hover, zoom and keyboard; stacked bars; tables of shades.

const charts = []; // all that have to be drawn again when the window changes

function keepDrawn(holder, paint) {
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
  const keepFocus = document.activeElement && holder.contains(document.activeElement);
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
  if (keepFocus) svg.focus();
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
  let ticks = how.log && box.low > 0 ? findLogTicks(box.low, box.high) : findTicks(box.low, box.high, wanted);
  if (ticks.length < 2) ticks = [box.low, box.high];
  if (how.whole) ticks = [...new Set(ticks.map(Math.round))];
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
  const { view, how, lines, guide, selection } = chart;
  const tellX = how.tellX || how.formatX;
  const places = [...new Set(lines.flatMap((line) => line.points.map((p) => p[0])))]
    .filter((x) => x >= chart.low && x <= chart.high)
    .sort((a, b) => a - b);
  let dragFrom = null;
  const nearest = (x) => places.reduce((best, p) => (Math.abs(chart.scaleX(p) - x) < Math.abs(chart.scaleX(best) - x) ? p : best), places[0]);
  const tell = (x, clientX, clientY) => {
    const at = chart.scaleX(x);
    guide.setAttribute("x1", at);
    guide.setAttribute("x2", at);
    guide.setAttribute("visibility", "visible");
    const rows = lines.filter((line) => !line.faint).map((line) => findValue(line, x, chart)).filter(Boolean);
    rows.sort((a, b) => b.y - a.y);
    const shown = rows.slice(0, 12).map((row) => ({ name: row.name, colour: row.colour, value: how.formatTip ? how.formatTip(row.x, row.y) : how.formatY(row.y) }));
    tip.show([{ head: true, name: `${how.xName}: ${tellX(x)}` }, ...shown], clientX, clientY);
  };
  const hide = () => {
    guide.setAttribute("visibility", "hidden");
    tip.hide();
  };
  const zoom = (from, to) => {
    if (to - from <= 0) return;
    view.zoom = [Math.max(from, chart.whole[0]), Math.min(to, chart.whole[1])];
    if (view.zoom[1] <= view.zoom[0]) view.zoom = null;
    hide();
    view.again();
  };
  const placeOf = (event) => event.clientX - svg.getBoundingClientRect().left;
  svg.addEventListener("pointermove", (event) => {
    const x = placeOf(event);
    if (places.length) tell(nearest(x), event.clientX, event.clientY);
    if (dragFrom !== null) {
      selection.setAttribute("x", Math.min(x, dragFrom));
      selection.setAttribute("width", Math.abs(x - dragFrom));
      selection.setAttribute("visibility", "visible");
    }
  });
  svg.addEventListener("pointerdown", (event) => {
    if (event.pointerType === "mouse") dragFrom = placeOf(event);
  });
  svg.addEventListener("pointerup", (event) => {
    const x = placeOf(event);
    if (dragFrom !== null && Math.abs(x - dragFrom) > 8) {
      zoom(chart.unscaleX(Math.min(x, dragFrom)), chart.unscaleX(Math.max(x, dragFrom)));
    }
    dragFrom = null;
    selection.setAttribute("visibility", "hidden");
  });
  svg.addEventListener("pointerleave", () => {
    dragFrom = null;
    selection.setAttribute("visibility", "hidden");
    hide();
  });
  svg.addEventListener("dblclick", () => {
    view.zoom = null;
    view.again();
  });
  svg.addEventListener("blur", hide);
  svg.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -1e9, End: 1e9 }[event.key];
    if (step) {
      const now = places.indexOf(view.place);
      const next = now < 0 ? (step > 0 && step < 1e9 ? 0 : places.length - 1) : now + step;
      view.place = places[Math.max(0, Math.min(places.length - 1, next))];
      const box = svg.getBoundingClientRect();
      tell(view.place, box.left + chart.scaleX(view.place), box.top + 20);
    } else if (event.key === "+" || event.key === "-") {
      const middle = view.place === null ? chart.unscaleX(chart.scaleX(chart.low) + chart.inner.width / 2) : view.place;
      const factor = event.key === "+" ? 0.25 : 1;
      const left = chart.scaleX(middle) - chart.inner.width * factor;
      zoom(chart.unscaleX(left), chart.unscaleX(left + 2 * chart.inner.width * factor));
    } else if (event.key === "Escape") {
      view.zoom = null;
      view.place = null;
      hide();
      view.again();
    } else return;
    event.preventDefault();
  });
}

// The point of a line at x, or where lines have other places the last one before it.
function findValue(line, x, chart) {
  const before = line.points.filter((point) => point[0] <= x * (1 + 1e-9) + 1e-9);
  const point = before.length ? before[before.length - 1] : null;
  return point && { name: line.name, colour: line.colour, x: point[0], y: point[1] };
}

// rows: [{name, parts: [n, ...]}]; one bar each, in the shades of `parts`: [{name, shade}]
function barChart(how, findRows) {
  const holder = make("div", { class: "chart" });
  const chart = keepDrawn(holder, (width) => paintBars(holder, width, how, findRows()));
  return { element: holder, redraw: () => chart.paint(holder.clientWidth) };
}

function paintBars(holder, width, how, rows) {
  holder.replaceChildren();
  if (!rows.length) {
    holder.append(make("p", { class: "empty" }, how.empty || "Nothing to draw."));
    return;
  }
  const thick = how.row || 24;
  const longest = Math.max(...rows.map((one) => one.name.length));
  const above = width < 480 && longest > 12; // no room beside the bars: names go above them
  const left = above ? 0 : Math.min(Math.max(60, width * 0.42), 16 + 7 * longest);
  const row = thick + (above ? 16 : 0);
  const height = rows.length * row + 8;
  const sums = rows.map((one) => one.parts.reduce((a, b) => a + b, 0));
  const most = Math.max(...sums, 1e-9);
  const svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": how.label });
  rows.forEach((one, i) => {
    const y = i * row + 4 + row - thick;
    const name = squeeze(one.name, Math.floor((above ? width : left - 8) / 6.6));
    svg.append(draw("text", above ? { class: "tick", x: 0, y: y - 4 } : { class: "tick", x: left - 8, y: y + thick / 2 + 2, "text-anchor": "end" }, name));
    let x = left;
    // All parts of a row in one tip: a part may be too thin to be pointed at.
    const told = one.parts.map((part, p) => ({ name: how.parts[p].name, value: `${how.format(part)}, ${formatPercent(part / (sums[i] || 1))}` })).filter((_, p) => one.parts[p]);
    const scale = (n) => (n / (how.shares ? sums[i] || 1 : most)) * (width - left - 74);
    one.parts.forEach((part, p) => {
      if (!part) return;
      const rect = draw("rect", {
        class: `part part-${p}`, x, y, width: Math.max(0.5, scale(part)), height: thick - 7,
        fill: how.parts[p].colour || null, "data-row": one.name, "data-part": how.parts[p].name, "data-value": part,
      });
      hoverOf(rect, [{ head: true, name: one.name }, ...told]);
      svg.append(rect);
      x += scale(part);
    });
    svg.append(draw("text", { class: "tick", x: x + 6, y: y + thick / 2 + 2 }, how.format(sums[i])));
  });
  holder.append(svg);
}

function hoverOf(element, rows) {
  element.addEventListener("pointermove", (event) => tip.show(rows, event.clientX, event.clientY));
  element.addEventListener("pointerleave", tip.hide);
}

function makeKey(parts) {
  return make("ul", { class: "key" }, parts.map((part, p) => {
    const spot = make("span", { class: `swatch part-${p}`, "aria-hidden": "true" });
    if (part.colour) spot.style.background = part.colour;
    return make("li", {}, spot, part.name);
  }));
}

// A table of shades: counts by row and column, darker for more within a row or in all.
function shadeTable(label, heads, rows, how = {}) {
  const most = Math.max(1, ...rows.flatMap((row) => row.cells.map((cell) => cell || 0)));
  const body = rows.map((row) => {
    const sum = how.byRow ? Math.max(1, row.cells.reduce((a, b) => a + (b || 0), 0)) : most;
    const cells = row.cells.map((cell) => {
      const share = (cell || 0) / sum;
      const td = make("td", { class: `shade${share > 0.55 ? " strong" : ""}` }, cell === null ? "" : how.format ? how.format(cell) : String(cell));
      // light or dark, and never in between, where no text could be read
      const depth = share > 0.55 ? 85 + ((share - 0.55) / 0.45) * 15 : share * 75;
      td.style.setProperty("--share", `${Math.round(depth)}%`);
      return td;
    });
    return make("tr", {}, make("th", { scope: "row" }, row.name), cells, row.tail || null);
  });
  return make("div", { class: "scroll shades", tabindex: "0", role: "region", "aria-label": label },
    make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, how.corner || ""), heads.map((head) => make("th", { scope: "col" }, head)))), make("tbody", {}, body)));
}
