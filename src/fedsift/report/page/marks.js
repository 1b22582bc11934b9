// Charts of marks in SVG, stacked bars and heat maps, with hover and keyboard; tables of shades.

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
  const svg = drawMarks(width, height, how.label), marks = [];
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
      marks.push({ row: i, column: p, rect, told: [{ head: true, name: one.name }, ...told] });
      svg.append(rect);
      x += scale(part);
    });
    svg.append(draw("text", { class: "tick", x: x + 6, y: y + thick / 2 + 2 }, how.format(sums[i])));
  });
  listenToMarks(svg, marks);
  holder.append(svg);
}

function drawMarks(width, height, label) {
  return draw("svg", {
    width, height, viewBox: `0 0 ${width} ${height}`, tabindex: "0", role: "application",
    "aria-label": `${label}. Arrow keys move over rows and columns, Escape leaves.`,
  });
}

// marks: [{row, column, rect, told}], and `told` is what the tip says, by mouse and by keyboard.
function listenToMarks(svg, marks) {
  const frame = draw("path", { class: "chosen" });
  let chosen = null;
  const choose = (mark) => {
    chosen = mark;
    frame.setAttribute("d", "");
    if (!mark) return tip.hide();
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => Number(mark.rect.getAttribute(name)));
    frame.setAttribute("d", `M${x},${y}h${width}v${height}h${-width}z`);
    mark.rect.scrollIntoView({ block: "nearest", behavior: "instant" });
    const box = mark.rect.getBoundingClientRect();
    tip.show(mark.told, box.left + Math.min(width, 60) / 2, box.top + height / 2);
  };
  svg.append(frame);
  for (const { rect, told } of marks) {
    rect.addEventListener("pointermove", (event) => tip.show(told, event.clientX, event.clientY));
    rect.addEventListener("pointerleave", tip.hide);
  }
  svg.addEventListener("blur", () => choose(null));
  svg.addEventListener("keydown", (event) => {
    if (event.key === "Escape") choose(null);
    else if (STEPS[event.key]) choose(chosen ? findNext(marks, chosen, STEPS[event.key]) : marks[0]);
    else return;
    event.preventDefault();
  });
}

const STEPS = {
  ArrowUp: { row: -1 }, ArrowDown: { row: 1 }, ArrowLeft: { column: -1 }, ArrowRight: { column: 1 },
  Home: { column: -1, far: true }, End: { column: 1, far: true },
};

// The mark that a key leads to: in the same row, or in the nearest row that has one.
function findNext(marks, from, step) {
  const way = step.row ? (one) => Math.sign(one.row - from.row) === step.row : (one) => one.row === from.row && Math.sign(one.column - from.column) === step.column;
  const far = (one) => Math.abs(one.row - from.row) * marks.length + Math.abs(one.column - from.column);
  const there = marks.filter(way).sort((a, b) => far(a) - far(b));
  return there.at(step.far ? -1 : 0) || from;
}

function makeKey(parts) {
  return make("ul", { class: "key" }, parts.map((part, p) => {
    const spot = make("span", { class: `swatch part-${p}`, "aria-hidden": "true" });
    if (part.colour) spot.style.background = part.colour;
    return make("li", {}, spot, part.name);
  }));
}

// A table of shades: counts by row and column, darker for more within a row.
function shadeTable(label, corner, names, rows) {
  const body = rows.map((row, r) => {
    const sum = Math.max(1, row.reduce((a, b) => a + b, 0));
    const cells = row.map((cell, c) => {
      const share = cell / sum;
      const td = make("td", { class: `shade${share > 0.55 ? " strong" : ""}`, "data-row": names[r], "data-column": names[c], "data-value": cell }, String(cell));
      // light or dark, and never in between, where no text could be read
      const depth = share > 0.55 ? 85 + ((share - 0.55) / 0.45) * 15 : share * 75;
      td.style.setProperty("--share", `${Math.round(depth)}%`);
      return td;
    });
    return make("tr", {}, make("th", { scope: "row" }, quote(names[r], 16)), cells);
  });
  return make("div", { class: "scroll shades", tabindex: "0", role: "region", "aria-label": label },
    make("table", {}, make("thead", {}, make("tr", {}, make("th", {}, corner), names.map((name) => make("th", { scope: "col" }, quote(name, 12))))), make("tbody", {}, body)));
}

// rows and columns of cells from 0 to 1; null: nothing there
function heatChart(how, rows, columns, cells) {
  const holder = make("div", { class: "chart" });
  keepDrawn(holder, (width) => {
    holder.replaceChildren();
    const left = Math.min(16 + 7 * Math.max(...rows.map((name) => name.length)), Math.max(76, Math.min(170, width * 0.25)));
    const cell = { width: (width - left - 8) / columns.length, height: Math.max(12, Math.min(24, 420 / rows.length)) };
    const height = rows.length * cell.height + 40;
    const svg = drawMarks(width, height, how.label), marks = [];
    const every = Math.max(1, Math.ceil(columns.length / (width / 60)));
    columns.forEach((name, c) => {
      if (c % every) return;
      svg.append(draw("text", { class: "tick", x: left + (c + 0.5) * cell.width, y: rows.length * cell.height + 16, "text-anchor": "middle" }, shorten(name, 9)));
    });
    const everyRow = cell.height < 14 ? 2 : 1;
    rows.forEach((name, r) => {
      if (r % everyRow === 0) svg.append(draw("text", { class: "tick", x: left - 8, y: (r + 0.5) * cell.height + 4, "text-anchor": "end" }, squeeze(name, Math.floor((left - 8) / 6.6))));
      cells[r].forEach((value, c) => {
        if (value === null || value === undefined) return;
        const rect = draw("rect", { class: "heat", x: left + c * cell.width, y: r * cell.height, width: Math.max(1, cell.width - 1), height: cell.height - 1, "fill-opacity": (how.shade ? how.shade(value) : value).toFixed(3), "data-row": name, "data-column": columns[c], "data-value": value });
        marks.push({ row: r, column: c, rect, told: [{ head: true, name: `${how.rowName} ${name}`.trim() }, { name: `${how.columnName} ${columns[c]}`, value: how.format(value) }] });
        svg.append(rect);
      });
    });
    svg.append(draw("text", { class: "axis", x: left + (width - left) / 2, y: height - 4, "text-anchor": "middle" }, how.columnName));
    listenToMarks(svg, marks);
    holder.append(svg);
  });
  return holder;
}
