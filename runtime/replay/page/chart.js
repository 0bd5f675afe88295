// Misses over slots: a line for each policy, the optimum below them, and the same in numbers.
"use strict";

const OPTIMUM = "optimum";

function shape(tag, properties, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A round number of steps: 1, 2 or 5 and zeros.
function roundStep(most, steps) {
  const unit = 10 ** Math.floor(Math.log10(most / steps || 1));
  return unit * ([1, 2, 5, 10].find((each) => each * unit * steps >= most) || 10);
}

// [{name, points: [[slots, misses per token, hit rate]]}], by slots.
function seriesOf(results) {
  const series = new Map();
  const by_slots = [...results.results].sort((a, b) => a.slots - b.slots);
  for (const { slots, policies } of by_slots) {
    for (const { policy, decode } of policies) {
      if (!series.has(policy)) series.set(policy, []);
      const asked = decode.hits + decode.misses;
      series.get(policy).push([slots, decode.misses_per_token, asked ? decode.hits / asked : 0]);
    }
  }
  return [...series].map(([name, points]) => ({ name, points }));
}

function lineColour(series, i) {
  return series.name === OPTIMUM ? "var(--ink)" : colour(i);
}

function drawChart(series, experts) {
  const width = Math.max(240, find("chart").clientWidth);  // drawn in its own size, so that text keeps its own
  const [height, left, right, top, bottom] = [300, 46, 22, 12, 44];
  const points = series.flatMap((each) => each.points);
  const most_slots = points.reduce((most, [slots]) => Math.max(most, slots), 1);
  const most = points.reduce((most, [, misses]) => Math.max(most, misses), 0) || 1;
  const step = roundStep(most, 4);
  const highest = step * Math.ceil(most / step);
  const x = (slots) => left + ((width - left - right) * slots) / most_slots;
  const y = (misses) => top + (height - top - bottom) * (1 - misses / highest);
  const chart = shape("svg", { width, height, viewBox: [0, 0, width, height].join(" "), role: "img",
                               "aria-label": "Misses a token over slots; the table below has the numbers" });
  for (let at = 0; at <= highest + step / 2; at += step) {
    chart.append(shape("line", { class: "axis", x1: left, x2: width - right, y1: y(at), y2: y(at) }),
                 shape("text", { x: left - 8, y: y(at) + 4, "text-anchor": "end" }, exact(at)));
  }
  let last = -Infinity;
  for (const slots of new Set(points.map(([slots]) => slots))) {
    if (x(slots) - last < 56) continue;
    last = x(slots);
    const label = (down, text) => shape("text", { x: x(slots), y: height - bottom + down, "text-anchor": "middle" }, text);
    chart.append(label(18, exact(slots)), label(34, percent(slots, experts)));
  }
  series.forEach((each, i) => {
    const ink = lineColour(each, i);
    const way = each.points.map(([slots, misses]) => x(slots).toFixed(1) + "," + y(misses).toFixed(1)).join(" ");
    const line = shape("polyline", { points: way, fill: "none", "stroke-width": each.name === OPTIMUM ? 2.5 : 2,
                                     "stroke-dasharray": each.name === OPTIMUM ? "6 4" : "none" });
    line.style.stroke = ink;
    chart.append(line);
    for (const [slots, misses] of each.points) {
      const dot = shape("circle", { cx: x(slots), cy: y(misses), r: 3 },
                        shape("title", {}, printable(each.name) + ": " + exact(misses) + " misses a token, " +
                                           exact(slots) + " slots"));
      dot.style.fill = ink;
      chart.append(dot);
    }
  });
  fill("chart", chart);
  fill("chart-legend", ...series.map((each, i) => make("span", {}, swatch(lineColour(each, i)), printable(each.name))));
}

function drawTable(series, experts) {
  const slots = series.length ? series[0].points.map(([each]) => each) : [];
  const head = make("tr", {}, make("th", { scope: "col" }, "Policy"), ...slots.map((each) =>
    make("th", { scope: "col" }, exact(each) + " slots, " + percent(each, experts))));
  const rows = series.map((each) =>
    make("tr", each.name === OPTIMUM ? { class: "optimum" } : {}, make("th", { scope: "row" }, printable(each.name)),
         ...each.points.map(([, misses, hits]) =>
           make("td", {}, misses.toFixed(2) + " ",
                make("small", {}, percent(Math.round(hits * 1000), 1000) + " hits")))));
  fill("table", make("table", {}, make("caption", {}, "Misses a decoded token, and hits of all demands"),
                     make("thead", {}, head), make("tbody", {}, ...rows)));
}
