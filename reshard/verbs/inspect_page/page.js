// The page: puts the parts together, and keeps what is chosen in the address: #layer=3&expert=5, #layer=3, #part=embed,
// each with &colour=size, dtype or shard.
"use strict";

function unitOfHash(model, hash) {
  const wanted = new URLSearchParams(hash.replace(/^#/, ""));
  const name = wanted.has("layer") ? Number(wanted.get("layer")) : wanted.get("part");
  const row = model.rows.find((each) => each.name === name);
  if (!row) return null;
  if (!wanted.has("expert")) return row.rest || null;
  return row.experts.get(Number(wanted.get("expert"))) || null;
}

const MODES = ["size", "dtype", "shard"];

// Where there are several shards, an expert's own is the most telling.
function modeOfHash(model, hash) {
  const wanted = new URLSearchParams(hash.replace(/^#/, "")).get("colour");
  if (MODES.includes(wanted)) return wanted;
  return model.before && model.before.files.length > 1 ? "shard" : "size";
}

function hashOf(unit, mode) {
  const place = typeof unit.row === "number" ? "#layer=" + unit.row : "#part=" + unit.row;
  return place + (unit.expert === null ? "" : "&expert=" + unit.expert) + "&colour=" + mode;
}

// What the line below the map says of a unit.
function describe(model, unit) {
  const places = sides(model).map(([word, side]) => {
    const files = filesOf(model, side, unit).map(([file]) => printable(side.files[file].path));
    return word + ": " + files.slice(0, 3).join(" and ") + (files.length > 3 ? " and " + (files.length - 3) + " more" : "");
  });
  return unitTitle(unit) + ": " + human(unit.bytes) + " in " + count(unit.kinds.length, "tensor") + ", most of it " +
    model.dtypes[mainDtype(model, unit)] + "; " + places.join("; ");
}

function drawLegend(model, map) {
  if (map.mode === "size") {
    const largest = human(map.largest);
    if (map.smallest === map.largest) return fill("legend", swatch(map.sizeColour(map.largest)), largest + " each");
    const ramp = make("span", { class: "ramp", role: "img", "aria-label": "small to large" });
    return fill("legend", human(map.smallest), ramp, largest, make("span", {}, "(logarithmic)"));
  }
  if (map.mode === "dtype") {
    const bytes = new Map();
    for (const unit of model.units) {
      const dtype = mainDtype(model, unit);
      bytes.set(dtype, (bytes.get(dtype) || 0) + 1);
    }
    const entries = [...bytes.entries()].sort((a, b) => b[1] - a[1]);
    return fill("legend", ...entries.map(([dtype, cells]) =>
      make("span", {}, swatch(dtypeColour(model, dtype)), model.dtypes[dtype] + " (" + count(cells, "cell") + ")")),
      make("span", {}, "the dtype that most bytes of a cell have"));
  }
  const files = map.arrangement.files;
  if (files.length <= COLOURS.length) {
    return fill("legend", ...files.map((file, i) => make("span", {}, swatch(colour(i)), nameCode(file.path))));
  }
  return fill("legend", make("span", {}, ...COLOURS.map((each) => swatch(each))), make("span", {}, exact(files.length) +
    " files in the order of their names; the colours begin again after " + COLOURS.length +
    ". A parted cell lies in several."));
}

// The two lists beside the drawing, which lead everywhere that the map does.
function fillChooser(model, unit) {
  const row = model.rows.find((each) => each.name === unit.row);
  const parts = find("choose-row");
  if (parts.options.length === 0) {
    model.rows.forEach((each, i) => parts.append(make("option", { value: i },
      typeof each.name === "number" ? "layer " + rowLabel(each) : each.name)));
  }
  parts.value = model.rows.indexOf(row);
  const experts = find("choose-expert");
  const options = [...row.experts.keys()].map((id) => make("option", { value: id }, String(id)));
  if (row.rest) options.unshift(make("option", { value: "" }, "none: the rest"));
  experts.replaceChildren(...options);
  experts.value = unit.expert === null ? "" : unit.expert;
}

function start() {
  const model = decode(find("catalogue").textContent);
  for (const row of model.rows) {
    row.mtp = isApart(row.name) || (typeof row.name === "number" && row.rest !== null &&
      row.rest.kinds.some((kind) => model.roles[model.kinds[kind].role] === "mtp"));
  }
  document.title = printable(model.place);
  fill("kind", model.kind);
  fill("place", make("span", { class: "name" }, printable(model.place)));
  fill("about", printable(model.about));
  fill("warnings", ...model.warnings.map((text) => make("li", { class: "name" }, printable(text))));
  find("warnings").hidden = model.warnings.length === 0;
  fill("footer", "Made by reshard inspect (" + model.program + "). The page is complete in itself and loads nothing.");
  fill("map-hint", "A row for each layer, a column for each routed expert; the first, wide cell is the rest of the " +
    "layer. Point, or use the arrow keys.");
  if (model.units.length === 0) return;

  drawFigures(model);
  drawTotals(model);
  const map = new CheckpointMap(find("map"), find("map-frame"), model);
  const redraw = () => {
    map.draw();
    drawLegend(model, map);
  };
  const show = () => {
    map.chosen = unitOfHash(model, location.hash) || model.units.find((unit) => unit.expert !== null) || model.units[0];
    map.pointed = null;
    map.mode = modeOfHash(model, location.hash);
    document.querySelector('input[value="' + map.mode + '"]').checked = true;
    redraw();
    const label = "Map of " + count(model.units.length, "part") + ". Chosen: " + unitTitle(map.chosen);
    find("map").setAttribute("aria-label", label);
    find("map").dataset.cells = model.units.length;
    fill("readout", describe(model, map.chosen));
    fillChooser(model, map.chosen);
    drawChosen(model, map.chosen);
  };
  const choose = (unit) => {
    if (unit) location.replace(hashOf(unit, map.mode));  // hashchange does the rest
  };
  wire(map, model, choose, redraw);
  window.addEventListener("hashchange", show);
  show();
}

function wire(map, model, choose, redraw) {
  const canvas = find("map");
  const unitAt = (event) => map.at(event.offsetX, event.offsetY);
  canvas.addEventListener("click", (event) => choose(unitAt(event)));
  canvas.addEventListener("pointermove", (event) => {
    const unit = unitAt(event);
    if (unit === map.pointed) return;
    map.pointed = unit;
    map.draw();
    fill("readout", describe(model, unit || map.chosen));
  });
  canvas.addEventListener("pointerleave", () => {
    map.pointed = null;
    map.draw();
    fill("readout", describe(model, map.chosen));
  });
  const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  canvas.addEventListener("keydown", (event) => {
    if (!steps[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    choose(map.neighbour(...steps[event.key]));
  });
  find("choose-row").addEventListener("change", (event) => {
    const row = model.rows[event.target.value];
    const same = map.chosen.expert !== null ? row.experts.get(map.chosen.expert) : null;
    choose(same || row.rest || row.experts.values().next().value);
  });
  find("choose-expert").addEventListener("change", (event) => {
    const row = model.rows.find((each) => each.name === map.chosen.row);
    choose(event.target.value === "" ? row.rest : row.experts.get(Number(event.target.value)));
  });
  find("chooser").addEventListener("submit", (event) => event.preventDefault());
  find("colour-by").addEventListener("change", (event) => {
    map.mode = event.target.value;
    choose(map.chosen);
  });
  window.addEventListener("resize", redraw);
  for (const query of ["(prefers-color-scheme: dark)", "print"]) {
    window.matchMedia(query).addEventListener("change", redraw);
  }
}

start();
