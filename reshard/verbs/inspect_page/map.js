// The map: a row for each layer and part, a column for each routed expert; before them one cell for the row's rest.
"use strict";

const REST = -1;  // the column of a row's rest

class CheckpointMap {
  constructor(canvas, frame, model) {
    this.canvas = canvas;
    this.frame = frame;
    this.model = model;
    this.mode = "size";
    this.chosen = null;
    this.pointed = null;
    this.column = new Map(model.experts.map((id, i) => [id, i]));
    this.line = new Map(model.rows.map((row, i) => [row.name, i]));
    // Rows above this one that the parts outside of the layers set apart.
    this.breaks = model.rows.map((row, i) => i > 0 && typeof row.name !== typeof model.rows[i - 1].name ? 1 : 0);
    for (let i = 1; i < this.breaks.length; ++i) this.breaks[i] += this.breaks[i - 1];
    const sizes = model.units.map((unit) => unit.bytes).filter((bytes) => bytes > 0);
    this.smallest = sizes.length ? sizes.reduce((a, b) => Math.min(a, b)) : 1;
    this.largest = sizes.length ? sizes.reduce((a, b) => Math.max(a, b)) : 1;
    this.arrangement = model.before || model.after;
  }

  // Every so many experts there is a gap and a number.
  tick() {
    const columns = this.model.experts.length;
    return columns <= 16 ? 4 : columns <= 96 ? 8 : 32;
  }

  measure() {
    const rows = this.model.rows.length;
    const columns = this.model.experts.length;
    const width = this.frame.clientWidth;
    this.gutter = width < 560 ? 44 : 64;
    this.top = columns ? 20 : 4;
    this.restWidth = width < 560 ? 14 : 26;
    this.left = this.gutter + this.restWidth + (width < 560 ? 4 : 10);
    const gaps = 2 * Math.floor(Math.max(0, columns - 1) / this.tick());
    const fits = columns ? (width - this.left - gaps - 4) / columns : 0;  // 4: the frame of a chosen last cell
    // A canvas has its limits; no model comes near these.
    this.cellWidth = Math.min(22, Math.max(Math.min(1, 8000 / columns), fits >= 8 ? Math.floor(fits) : fits));
    this.cellHeight = rows <= 24 ? 20 : rows <= 100 ? 11 : Math.min(6, 9000 / rows);
    this.width = Math.max(this.left + gaps + columns * this.cellWidth + 4, Math.min(width, 220));
    this.height = this.y(rows - 1) + this.cellHeight + 3;
  }

  y(line) {
    return this.top + line * this.cellHeight + 6 * this.breaks[line];
  }

  x(column) {
    if (column === REST) return this.gutter;
    return this.left + column * this.cellWidth + 2 * Math.floor(column / this.tick());
  }

  // [left, top, width, height] of a cell, on whole pixels of the screen.
  box(unit) {
    const column = unit.expert === null ? REST : this.column.get(unit.expert);
    const wide = column === REST ? this.restWidth : this.cellWidth;
    const snap = (value) => Math.round(value * this.ratio) / this.ratio;
    const left = snap(this.x(column));
    const top = this.y(this.line.get(unit.row));
    const gap = this.cellWidth >= 8 || column === REST ? 1 : 0;
    return [left, top, Math.max(1 / this.ratio, snap(this.x(column) + wide) - left - gap),
            Math.max(this.cellHeight - 1, this.cellHeight / 2)];
  }

  draw() {
    this.ratio = window.devicePixelRatio || 1;
    this.measure();
    this.canvas.width = Math.round(this.width * this.ratio);
    this.canvas.height = Math.round(this.height * this.ratio);
    this.canvas.style.width = this.width + "px";
    this.canvas.style.height = this.height + "px";
    const style = getComputedStyle(document.documentElement);
    const ink = (name) => style.getPropertyValue("--" + name).trim();
    this.inks = { ink: ink("ink"), soft: ink("soft"), panel: ink("panel"), ramp: ["low", "middle", "high"].map(ink) };
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    this.drawLabels(pen);
    for (const unit of this.model.units) this.drawCell(pen, unit);
    if (this.pointed && this.pointed !== this.chosen) this.frameCell(pen, this.pointed, 1);
    if (this.chosen) this.frameCell(pen, this.chosen, 2);
  }

  drawLabels(pen) {
    pen.font = "11px system-ui, sans-serif";
    pen.fillStyle = this.inks.soft;
    pen.textBaseline = "middle";
    const step = this.cellHeight >= 11 ? (this.cellHeight >= 20 ? 1 : 2) : 4;
    pen.textAlign = "right";
    this.model.rows.forEach((row, i) => {
      const next = this.model.rows[i + 1];
      const crowded = step > 1 && next !== undefined && next.mtp;
      const first = row.mtp && (step === 1 || !this.model.rows[i - 1]?.mtp);
      if (typeof row.name === "number" && (row.name % step !== 0 || crowded || row.mtp) && !first) return;
      const y = this.y(i) + (this.cellHeight - 1) / 2;
      pen.fillText(rowLabel(row), this.gutter - 7, y, this.gutter - 8);
    });
    pen.textAlign = "left";
    const every = this.tick() * Math.ceil(26 / (this.cellWidth * this.tick()));
    this.model.experts.forEach((id, column) => {
      if (column % every === 0) pen.fillText(String(id), this.x(column), 8);
    });
  }

  drawCell(pen, unit) {
    const [left, top, width, height] = this.box(unit);
    if (this.mode !== "shard" || !this.arrangement) {
      pen.fillStyle = this.mode === "dtype" ? dtypeColour(this.model, mainDtype(this.model, unit))
                                            : this.sizeColour(unit.bytes);
      pen.fillRect(left, top, width, height);
      return;
    }
    // A cell whose bytes lie in several files is parted as its bytes are.
    let y = top;
    for (const [file, bytes] of filesOf(this.model, this.arrangement, unit)) {
      const part = unit.bytes ? (height * bytes) / unit.bytes : height;
      pen.fillStyle = colour(file);
      pen.fillRect(left, y, width, part);
      y += part;
    }
  }

  sizeColour(bytes) {
    if (bytes <= 0) return this.inks.ramp[0];
    const span = Math.log(this.largest) - Math.log(this.smallest);
    const share = span > 0 ? (Math.log(bytes) - Math.log(this.smallest)) / span : 0.5;
    return share < 0.5 ? mix(this.inks.ramp[0], this.inks.ramp[1], 2 * share)
                       : mix(this.inks.ramp[1], this.inks.ramp[2], 2 * share - 1);
  }

  frameCell(pen, unit, strength) {
    const [left, top, width, height] = this.box(unit);
    const grow = this.cellWidth < 8 ? 2 : 1;
    for (const [line, ink, out] of [[2 + strength, this.inks.panel, grow], [strength, this.inks.ink, grow]]) {
      pen.lineWidth = line;
      pen.strokeStyle = ink;
      pen.strokeRect(left - out, top - out, width + 2 * out, height + 2 * out);
    }
  }

  // The unit at a point of the canvas, or null.
  at(x, y) {
    const row = this.model.rows.find((_, i) => y >= this.y(i) && y < this.y(i) + this.cellHeight);
    if (!row) return null;
    if (x < this.left) return row.rest || null;
    const tick = this.tick();
    const group = Math.floor((x - this.left) / (tick * this.cellWidth + 2));
    const inside = Math.floor((x - this.left - group * (tick * this.cellWidth + 2)) / this.cellWidth);
    const id = this.model.experts[group * tick + Math.min(inside, tick - 1)];
    return row.experts.get(id) || null;
  }

  // The next unit from the chosen one in a direction: columns (rest first) by x, rows by y. Null: the edge.
  neighbour(dx, dy) {
    const { rows, experts } = this.model;
    let row = this.line.get(this.chosen.row);
    let column = this.chosen.expert === null ? REST : this.column.get(this.chosen.expert);
    for (;;) {
      row += dy;
      column += dx;
      if (row < 0 || row >= rows.length || column < REST || column >= experts.length) return null;
      const wanted = column === REST ? rows[row].rest : rows[row].experts.get(experts[column]);
      if (wanted) return wanted;
      if (dy !== 0 && rows[row].rest) return rows[row].rest;
    }
  }
}

function rowLabel(row) {
  return layerName(row.name) + (row.mtp && !isApart(row.name) ? " mtp" : "");
}

// [[file, bytes]] of a unit, by file.
function filesOf(model, arrangement, unit) {
  const bytes = new Map();
  unit.kinds.forEach((kind, i) => {
    const file = arrangement.file[unit.first + i];
    bytes.set(file, (bytes.get(file) || 0) + model.kinds[kind].bytes);
  });
  return [...bytes.entries()].sort((a, b) => a[0] - b[0]);
}

// A colour between two of the form "#rrggbb".
function mix(from, to, share) {
  const channel = (text, at) => parseInt(text.slice(at, at + 2), 16);
  const mixed = [1, 3, 5].map((at) => Math.round(channel(from, at) * (1 - share) + channel(to, at) * share));
  return "rgb(" + mixed.join(",") + ")";
}
