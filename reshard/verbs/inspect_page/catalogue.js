// The catalogue as the page uses it, decoded from the JSON that reshard/inspect_data.cpp writes (its header says how).
"use strict";

const PAGE_BYTES = 4096;
const FIRST_APART = 60000;  // an MTP module that is numbered apart from the layers is the layer with this and its number

function isApart(layer) {
  return typeof layer === "number" && layer >= FIRST_APART;
}

// As it stands in the names of its tensors.
function layerNumber(layer) {
  return isApart(layer) ? layer - FIRST_APART : layer;
}

// For people.
function layerName(layer) {
  return isApart(layer) ? "mtp." + layerNumber(layer) : String(layer);
}

// Units are what the map shows as one cell: a routed expert, the rest of a layer, or a part outside of all layers.
// Tensors are numbered through all units.
function decodeUnits(data) {
  const units = [];
  let tensors = 0;
  for (const [place, first, repeated, set] of data.units) {
    for (let i = 0; i < repeated; ++i) {
      const kinds = data.sets[set];
      const unit = { row: place, expert: first < 0 ? null : first + i, kinds, first: tensors, bytes: 0 };
      for (const kind of kinds) unit.bytes += data.kinds[kind].bytes;
      units.push(unit);
      tensors += kinds.length;
    }
  }
  return { units, tensors };
}

// Where every tensor lies: {files: [{path, bytes, tensors}], file: per tensor, begin: per tensor}.
function decodeArrangement(source, data, kindOf) {
  const tensors = kindOf.length;
  const arrangement = { files: [], file: new Int32Array(tensors).fill(-1), begin: new Float64Array(tensors) };
  for (const [path, bytes, start, runs] of source.files) {
    let at = start;
    let next = 0;
    let held = 0;
    for (let r = 0; r < runs.length; r += 2) {
      if (runs[r + 1] === 0) {  // a hole of so many bytes
        at += runs[r];
        continue;
      }
      next += runs[r];
      for (let i = 0; i < runs[r + 1]; ++i, ++next, ++held) {
        arrangement.file[next] = arrangement.files.length;
        arrangement.begin[next] = at;
        at += data.kinds[kindOf[next]].bytes;
      }
    }
    arrangement.files.push({ path, bytes, tensors: held });
  }
  return arrangement;
}

function decode(text) {
  const data = JSON.parse(text);
  data.kinds = data.kinds.map(([pieces, dtype, role, bytes, shape]) => ({ pieces, dtype, role, bytes, shape }));
  const { units, tensors } = decodeUnits(data);
  const kindOf = new Int32Array(tensors);
  for (const unit of units) unit.kinds.forEach((kind, i) => { kindOf[unit.first + i] = kind; });
  const model = { ...data, units, tensors, kindOf, before: null, after: null };
  if (data.before) model.before = decodeArrangement(data.before, data, kindOf);
  if (data.after) model.after = decodeArrangement(data.after, data, kindOf);
  model.rows = rowsOf(units);
  model.dtypeRank = ranks(tally(model, (kind) => kind.dtype));
  model.experts = [...new Set(units.filter((unit) => unit.expert !== null).map((unit) => unit.expert))]
    .sort((a, b) => a - b);
  return model;
}

// {tensors, bytes} by what `key` says of (kind, unit).
function tally(model, key) {
  const totals = new Map();
  for (const unit of model.units) {
    for (const number of unit.kinds) {
      const kind = model.kinds[number];
      const name = key(kind, unit);
      if (!totals.has(name)) totals.set(name, { tensors: 0, bytes: 0 });
      const total = totals.get(name);
      ++total.tensors;
      total.bytes += kind.bytes;
    }
  }
  return totals;
}

// Name -> place in the order of the bytes, most first.
function ranks(totals) {
  return new Map([...totals.entries()].sort((a, b) => b[1].bytes - a[1].bytes).map(([name], i) => [name, i]));
}

function dtypeColour(model, dtype) {
  return colour(model.dtypeRank.get(dtype));
}

// The arrangements that there are: [[word, arrangement]].
function sides(model) {
  return [["before", model.before], ["after", model.after]].filter(([, side]) => side);
}

// One row a layer and part, in the order of the units: {name, layer, rest: unit or null, experts: Map(id -> unit)}.
function rowsOf(units) {
  const rows = new Map();
  for (const unit of units) {
    if (!rows.has(unit.row)) rows.set(unit.row, { name: unit.row, rest: null, experts: new Map() });
    const row = rows.get(unit.row);
    if (unit.expert === null) row.rest = unit;
    else row.experts.set(unit.expert, unit);
  }
  return [...rows.values()];
}

function tensorName(model, unit, i) {
  const pieces = model.kinds[unit.kinds[i]].pieces;
  if (pieces.length === 1) return pieces[0];
  const begin = pieces[0] + layerNumber(unit.row) + pieces[1];
  return pieces.length === 2 ? begin : begin + unit.expert + pieces[2];
}

// What tells a tensor from the others of its unit: "gate_proj.weight".
function shortName(kind) {
  const name = kind.pieces[kind.pieces.length - 1];
  return name.startsWith(".") ? name.slice(1) : name;
}

// A number for the colour of each tensor of a unit: what belongs to a weight (its scale) has that of the weight.
function colourNumbers(model, unit) {
  const numbers = [];
  let weight = null;
  for (const number of unit.kinds) {
    const name = shortName(model.kinds[number]);
    const belongs = weight !== null && name.startsWith(weight);
    if (!belongs) weight = name;
    numbers.push(numbers.length === 0 ? 0 : numbers[numbers.length - 1] + (belongs ? 0 : 1));
  }
  return numbers;
}

function unitTitle(unit) {
  if (unit.expert !== null) return "Layer " + layerName(unit.row) + ", expert " + unit.expert;
  if (typeof unit.row === "number") return "Layer " + layerName(unit.row) + ", without its routed experts";
  return { embed: "Token embedding", head: "Final norm and output head" }[unit.row] || "Tensors outside of all layers";
}

// The pieces of a unit in an arrangement, by file and offset: [{i, file, begin, end}], i counting within the unit.
function piecesOf(model, arrangement, unit) {
  const pieces = unit.kinds.map((kind, i) => {
    const begin = arrangement.begin[unit.first + i];
    return { i, file: arrangement.file[unit.first + i], begin, end: begin + model.kinds[kind].bytes };
  });
  return pieces.sort((a, b) => a.file - b.file || a.begin - b.begin || a.end - b.end);
}

// Adjacent pieces joined: [{file, begin, end, pieces}].
function extentsOf(pieces) {
  const extents = [];
  for (const piece of pieces) {
    const last = extents[extents.length - 1];
    if (last && last.file === piece.file && last.end === piece.begin) {
      last.end = piece.end;
      last.pieces.push(piece);
    } else {
      extents.push({ file: piece.file, begin: piece.begin, end: piece.end, pieces: [piece] });
    }
  }
  return extents;
}

// The dtype that most bytes of a unit have.
function mainDtype(model, unit) {
  const bytes = new Map();
  for (const number of unit.kinds) {
    const kind = model.kinds[number];
    bytes.set(kind.dtype, (bytes.get(kind.dtype) || 0) + kind.bytes);
  }
  return [...bytes.entries()].reduce((a, b) => (b[1] > a[1] ? b : a), [0, -1])[0];
}
