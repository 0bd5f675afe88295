// Totals: the figures at the top, and the tables by role, dtype, layer and file.
"use strict";

// How an arrangement serves a reader of routed experts.
function expertReads(model, arrangement) {
  const reads = { experts: 0, extents: 0, whole: 0, parted: 0, matrices: 0, aligned: 0 };
  for (const unit of model.units) {
    if (unit.expert === null) continue;
    const pieces = piecesOf(model, arrangement, unit);
    const extents = extentsOf(pieces);
    ++reads.experts;
    reads.extents += extents.length;
    if (extents.length === 1) ++reads.whole;
    if (new Set(extents.map((extent) => extent.file)).size > 1) ++reads.parted;
    const largest = pieces.reduce((most, piece) => Math.max(most, piece.end - piece.begin), 0);
    for (const piece of pieces) {
      if (4 * (piece.end - piece.begin) < largest) continue;  // scales and other small siblings
      ++reads.matrices;
      if (piece.begin % PAGE_BYTES === 0) ++reads.aligned;
    }
  }
  return reads;
}

function drawFigures(model) {
  const layers = model.rows.filter((row) => typeof row.name === "number").length;
  const experts = model.units.filter((unit) => unit.expert !== null).length;
  const files = sides(model).map(([, side]) => exact(side.files.length));
  const bytes = model.units.reduce((sum, unit) => sum + unit.bytes, 0);
  const figures = [
    ["Weights", human(bytes), exact(bytes) + " bytes"],
    ["Tensors", exact(model.tensors), count(tally(model, (kind) => kind.dtype).size, "dtype")],
    ["Layers", exact(layers), model.layer_map ? "pass: " + model.layer_map : "each once"],
    ["Routed experts", exact(experts), expertsEach(model)],
    ["Files", files.join(" → "), files.length === 2 ? "before → after packing" : "packed"],
  ];
  if (experts) {
    const each = sides(model).map(([, side]) => {
      const reads = expertReads(model, side);
      return (reads.extents / reads.experts).toFixed(2);
    });
    figures.push(["Reads for an expert", each.join(" → "), "extents, on average"]);
  }
  fill("figures", ...figures.map(([name, value, more]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value), make("dd", {}, more))));
}

function expertsEach(model) {
  const counts = model.rows.map((row) => row.experts.size).filter((size) => size > 0);
  if (counts.length === 0) return "no name tells of one";
  const [least, most] = [Math.min(...counts), Math.max(...counts)];
  const each = least === most ? exact(most) : exact(least) + " to " + exact(most);
  return each + " in each of " + count(counts.length, "layer");
}

function drawTotals(model) {
  const all = model.units.reduce((sum, unit) => sum + unit.bytes, 0);
  fill("totals", shareTable("By role", "role", model.roles, tally(model, (kind) => kind.role), all, "role"),
       shareTable("By dtype", "dtype", model.dtypes, tally(model, (kind) => kind.dtype), all, "dtype"),
       fileTable(model), packingTable(model), layerTable(model));
}

function shareTable(caption, word, names, totals, all, id) {
  const rows = [...ranks(totals).entries()].map(([number, rank]) => {
    const total = totals.get(number);
    const bar = make("i", {});
    bar.style.width = (all ? (100 * total.bytes) / all : 0) + "%";
    bar.style.background = colour(rank);
    return make("tr", { data: { name: names[number] } }, make("th", { scope: "row" }, names[number]),
      make("td", { class: "number" }, exact(total.tensors)), make("td", { class: "number" }, exact(total.bytes)),
      make("td", { class: "number" }, percent(total.bytes, all)), make("td", { class: "bar" }, make("div", {}, bar)));
  });
  return tableOf(caption, [word, "tensors", "bytes", "share", ""], rows, { id: "by-" + id });
}

// The first column and the last, if it has no heading, are not numbers.
function tableOf(caption, headings, rows, options) {
  const head = headings.map((word, i) => make("th", { scope: "col", ...(i && word ? { class: "number" } : {}) }, word));
  const table = make("table", { id: options.id }, make("caption", {}, caption),
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows));
  return make("div", { class: options.wide ? "scroll wide" : "scroll" }, table);
}

function fileTable(model) {
  const payload = model.units.reduce((sum, unit) => sum + unit.bytes, 0);
  const rows = [["files", (side) => exact(side.files.length)],
    ["bytes", (side) => exact(total(side))],
    ["of them headers and padding", (side) => exact(total(side) - payload)],
    ["smallest file", (side) => exact(side.files.reduce((least, file) => Math.min(least, file.bytes), Infinity))],
    ["largest file", (side) => exact(side.files.reduce((most, file) => Math.max(most, file.bytes), 0))]];
  return compareTable(model, "Files", "files", rows);
}

function total(side) {
  return side.files.reduce((sum, file) => sum + file.bytes, 0);
}

function packingTable(model) {
  if (!model.experts.length) {
    return make("p", { class: "hint" }, "No tensor name tells of a routed expert, so packing sorts by layer alone.");
  }
  const reads = new Map(sides(model).map(([, side]) => [side, expertReads(model, side)]));
  const rows = [["lie in one extent", (side) => exact(reads.get(side).whole) + " of " + exact(reads.get(side).experts)],
    ["lie in several files", (side) => exact(reads.get(side).parted)],
    ["extents, on average", (side) => (reads.get(side).extents / reads.get(side).experts).toFixed(2)],
    ["matrices that begin on a page", (side) => percent(reads.get(side).aligned, reads.get(side).matrices)]];
  return compareTable(model, "Routed experts", "experts", rows);
}

function compareTable(model, caption, id, rows) {
  return tableOf(caption, ["", ...sides(model).map(([word]) => word + " packing")], rows.map(([name, value]) =>
    make("tr", {}, make("th", { scope: "row" }, name),
         ...sides(model).map(([, side]) => make("td", { class: "number" }, value(side))))), { id: "by-" + id });
}

function layerTable(model) {
  const largest = model.rows.reduce((most, row) => Math.max(most, rowBytes(row)), 1);
  const rows = model.rows.map((row) => {
    const experts = [...row.experts.values()];
    const routed = experts.reduce((sum, unit) => sum + unit.bytes, 0);
    const rest = row.rest ? row.rest.bytes : 0;
    const bars = make("div", {});
    for (const [bytes, ink] of [[rest, colour(2)], [routed, colour(0)]]) {
      const bar = make("i", {});
      bar.style.width = (100 * bytes) / largest + "%";
      bar.style.background = ink;
      if (bytes) bars.append(bar);
    }
    const tensors = experts.reduce((sum, unit) => sum + unit.kinds.length, row.rest ? row.rest.kinds.length : 0);
    const name = typeof row.name === "number" ? "layer " + rowLabel(row) : row.name;
    return make("tr", { data: { row: row.name } }, make("th", { scope: "row" }, name),
      make("td", { class: "number" }, exact(tensors)), make("td", { class: "number" }, exact(rest + routed)),
      make("td", { class: "number" }, exact(experts.length)), make("td", { class: "number" }, exact(routed)),
      make("td", { class: "bar" }, bars));
  });
  const made = tableOf("By layer", ["", "tensors", "bytes", "experts", "bytes of experts", ""], rows,
                       { id: "by-layer", wide: true });
  made.append(make("p", { class: "legend" }, make("span", {}, swatch(colour(2)), "what every token needs"),
                   make("span", {}, swatch(colour(0)), "routed experts")));
  return made;
}

function rowBytes(row) {
  let bytes = row.rest ? row.rest.bytes : 0;
  for (const unit of row.experts.values()) bytes += unit.bytes;
  return bytes;
}
