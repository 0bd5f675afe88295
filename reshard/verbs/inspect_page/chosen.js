// What was chosen on the map: where its bytes lie before and after packing, drawn and in numbers.
"use strict";

const MOST_PIECES = 240;  // drawn in one file; the numbers below are never cut
const MOST_LISTED = 1000;

function drawChosen(model, unit) {
  fill("chosen-title", unitTitle(unit));
  const size = count(unit.kinds.length, "tensor") + ", " + exact(unit.bytes) + " bytes";
  const parts = [make("p", { class: "hint" }, size)];
  if (model.before) parts.push(drawSide(model, model.before, unit, "before", "Before packing", model.before_title));
  else parts.push(make("section", { class: "side" }, make("h3", {}, "Before packing"),
                       make("p", { class: "name" }, "Not shown: " + printable(model.before_reason))));
  parts.push(drawSide(model, model.after, unit, "after", "After packing", model.after_title));
  parts.push(tensorTable(model, unit));
  fill("chosen", ...parts);
}

function drawSide(model, arrangement, unit, side, title, about) {
  const extents = extentsOf(piecesOf(model, arrangement, unit));
  const byFile = new Map();
  for (const extent of extents) {
    if (!byFile.has(extent.file)) byFile.set(extent.file, []);
    byFile.get(extent.file).push(extent);
  }
  const made = make("section", { class: "side", "aria-label": title });
  made.append(make("h3", {}, title), make("p", { class: "name" },
    printable(about) + ": " + count(extents.length, "extent") + " in " + count(byFile.size, "file")));
  for (const [file, found] of byFile) made.append(drawFile(model, arrangement, unit, side, file, found));
  return made;
}

function drawFile(model, arrangement, unit, side, number, extents) {
  const file = arrangement.files[number];
  const held = extents.reduce((sum, extent) => sum + extent.end - extent.begin, 0);
  const made = make("div", { class: "file" });
  made.append(make("div", { class: "file-head" },
    nameCode(file.path),
    make("span", {}, human(held) + " of " + human(file.bytes) + " (" + percent(held, file.bytes) + ")")));
  made.append(track(file, extents), make("div", { class: "scale", "aria-hidden": "true" },
    make("span", {}, "0"), make("span", {}, exact(file.bytes))));
  made.append(pieceBar(model, unit, extents));
  const list = make("ul", { class: "extents" });
  for (const extent of extents.slice(0, MOST_LISTED)) {
    const data = { side, file: file.path, begin: extent.begin, end: extent.end };
    const more = "(" + exact(extent.end - extent.begin) + " bytes; " + pagePlace(extent.begin) + ")";
    list.append(make("li", { data }, exact(extent.begin) + " – " + exact(extent.end) + " ",
                     make("span", { class: "where" }, more)));
  }
  if (extents.length > MOST_LISTED) list.append(make("li", {}, "and " + exact(extents.length - MOST_LISTED) + " more"));
  made.append(list);
  return made;
}

function pagePlace(begin) {
  const over = begin % PAGE_BYTES;
  return over === 0 ? "on a page" : exact(over) + " past a page";
}

// The whole file, and in it the extents to scale.
function track(file, extents) {
  const percentOf = (bytes) => (file.bytes ? (100 * bytes) / file.bytes : 0);
  const words = (bytes) => percentOf(bytes).toFixed(1) + " %";
  const label = "Of " + exact(file.bytes) + " bytes: " +
    extents.slice(0, 20).map((extent) => words(extent.begin) + " to " + words(extent.end)).join(", ");
  const made = make("div", { class: "track", role: "img", "aria-label": label });
  for (const extent of extents.slice(0, MOST_PIECES)) {
    const mark = make("i", {});
    mark.style.left = Math.min(percentOf(extent.begin), 99.7) + "%";
    mark.style.width = percentOf(extent.end - extent.begin) + "%";
    made.append(mark);
  }
  return made;
}

// The tensors in the order of the file, as wide as they are large; what lies between is left out and hatched.
function pieceBar(model, unit, extents) {
  const made = make("div", { class: "pieces", "aria-hidden": "true" });
  const colours = colourNumbers(model, unit);
  const pieces = extents.flatMap((extent) => extent.pieces).slice(0, MOST_PIECES);
  const all = pieces.reduce((sum, piece) => sum + piece.end - piece.begin, 0);
  let end = null;
  for (const piece of pieces) {
    if (end !== null && piece.begin !== end) {
      made.append(make("div", { class: "hole", title: exact(piece.begin - end) + " bytes of others" }));
    }
    end = piece.end;
    const kind = model.kinds[unit.kinds[piece.i]];
    const bytes = piece.end - piece.begin;
    const small = bytes * 12 < all;
    const name = printable(shortName(kind));
    const title = name + ", " + exact(bytes) + " bytes";
    const box = make("div", { class: small ? "piece small" : "piece", title }, name);
    box.style.flexGrow = bytes;
    box.style.background = colour(colours[piece.i]);
    made.append(box);
  }
  return made;
}

function tensorTable(model, unit) {
  const range = (arrangement, i, bytes) => {
    const begin = arrangement.begin[unit.first + i];
    return exact(begin) + " – " + exact(begin + bytes);
  };
  const colours = colourNumbers(model, unit);
  const labels = ["dtype", "shape", "bytes", ...sides(model).map(([word]) => "bytes of the file, " + word)];
  const rows = unit.kinds.slice(0, MOST_LISTED).map((number, i) => {
    const kind = model.kinds[number];
    const name = make("th", { scope: "row" }, make("div", { class: "tagged" }, swatch(colour(colours[i])),
                                                  nameCode(tensorName(model, unit, i))));
    const values = [model.dtypes[kind.dtype], "[" + kind.shape.join(", ") + "]", exact(kind.bytes),
                    ...sides(model).map(([, arrangement]) => range(arrangement, i, kind.bytes))];
    return make("tr", { data: { tensor: i } }, name, ...values.map((value, column) =>
      make("td", { class: column < 2 ? "short" : "number", data: { label: labels[column] } }, value)));
  });
  const head = make("tr", {}, make("th", { scope: "col" }, "tensor"), ...labels.map((word, column) =>
    make("th", { scope: "col", class: column < 2 ? "short" : "number" }, word)));
  const table = make("table", { class: "tensors" }, make("caption", {}, "Tensors"), make("thead", {}, head),
                     make("tbody", {}, ...rows));
  const made = make("div", { class: "scroll" }, table);
  if (unit.kinds.length > MOST_LISTED) {
    made.append(make("p", { class: "hint" }, "and " + exact(unit.kinds.length - MOST_LISTED) + " more"));
  }
  return made;
}
