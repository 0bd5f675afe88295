// The map of experts: a row for each layer, a column for each of its experts. A cell has a palette colour (such as the
// memory that holds the expert), and glows for a while after it was lit. The pages of a server and of a recorded trace
// use it. V3's 14,848 cells are one image of a pixel each, drawn enlarged: a millisecond per frame.
"use strict";

class ExpertMap {
  // rows: [{layer, experts}]; palette: names of colours in the style; `describe(row, expert)`: the readout's text.
  constructor(holder, rows, palette, describe) {
    this.rows = rows;
    this.columns = rows.reduce((most, row) => Math.max(most, row.experts), 1);
    this.palette = palette;
    this.base = rows.map((row) => new Uint8Array(row.experts));
    this.glow = rows.map((row) => new Float32Array(row.experts));
    this.glowing = false;
    this.chosen = null;  // [row, expert]
    this.halfLife = 900;  // of a glow, in ms; Infinity: it stays until the next `dim`
    this.calm = matchMedia("(prefers-reduced-motion: reduce)");
    this.canvas = make("canvas", { tabindex: "0", role: "img" });
    this.readout = make("p", { class: "map-readout", role: "status" });
    this.describe = describe;
    this.picture = make("canvas", {});
    this.canvas.dataset.cells = rows.reduce((sum, row) => sum + row.experts, 0);
    this.frame = make("div", { class: "expert-map" }, this.canvas);
    holder.replaceChildren(this.frame, this.readout);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerdown", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.choose(null));
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.canvas.addEventListener("blur", () => this.choose(null));
    new ResizeObserver(() => this.redraw()).observe(this.frame);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
  }

  label(text) {
    this.canvas.setAttribute("aria-label", text);
  }

  put(row, expert, place) {
    if (expert < this.rows[row].experts) this.base[row][expert] = place;
  }

  light(row, expert, strength) {
    if (expert < this.rows[row].experts) this.glow[row][expert] = Math.max(this.glow[row][expert], strength);
  }

  dim() {
    for (const row of this.glow) row.fill(0);
  }

  lit() {
    return this.glow.reduce((sum, row) => sum + row.reduce((lit, each) => lit + (each > 0.5 ? 1 : 0), 0), 0);
  }

  // Shows put and lit cells; glows then fade, or stay if reduced motion is preferred.
  show() {
    this.canvas.dataset.lit = this.lit();
    this.update();
    if (this.calm.matches || this.halfLife === Infinity || this.fading) return;
    this.fading = true;
    let before = performance.now();
    const fade = (now) => {
      if (now - before >= 45) {  // about 20 frames per second
        const share = 0.5 ** ((now - before) / this.halfLife);
        before = now;
        let most = 0;
        for (const row of this.glow) {
          for (let i = 0; i < row.length; ++i) most = Math.max(most, row[i] *= share);
        }
        if (most < 0.01) {
          this.dim();
          this.fading = false;
        }
        this.update();
      }
      if (this.fading) requestAnimationFrame(fade);
    };
    requestAnimationFrame(fade);
  }

  redraw() {
    this.measured = false;
    this.update();
  }

  measure() {
    const ratio = window.devicePixelRatio || 1;
    const room = this.frame.clientWidth;
    if (room === 0) return false;  // not visible
    this.left = 30;
    this.top = 16;
    const wide = (room - this.left - 1) / this.columns;
    this.cellWidth = Math.min(16, wide * ratio >= 3 ? Math.floor(wide * ratio) / ratio : Math.max(wide, 0.5));
    const count = Math.max(1, this.rows.length);
    this.cellHeight = count <= 12 ? 16 : count <= 32 ? 9 : Math.max(1, Math.min(6, Math.floor(380 / count)));
    this.width = this.left + this.columns * this.cellWidth + 1;
    this.height = this.top + count * this.cellHeight + 1;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = this.width + "px";
    this.canvas.style.height = this.height + "px";
    this.picture.width = this.columns;
    this.picture.height = count;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue("--" + name).trim();
    const channels = (name) => [1, 3, 5].map((at) => parseInt(colour(name).slice(at, at + 2), 16));
    this.inks = { lit: channels("map-lit"), palette: this.palette.map(channels) };
    for (const name of ["soft", "ink", "panel"]) this.inks[name] = colour(name);
    this.ratio = ratio;
    this.measured = true;
    return true;
  }

  update() {
    if (!this.measured && !this.measure()) return;
    const pixels = new ImageData(this.columns, Math.max(1, this.rows.length));
    const { lit, palette } = this.inks;
    this.base.forEach((places, row) => {
      let at = row * this.columns * 4;
      for (let expert = 0; expert < places.length; ++expert, at += 4) {
        const from = palette[places[expert]];
        const share = Math.min(1, this.glow[row][expert]);
        for (let i = 0; i < 3; ++i) pixels.data[at + i] = from[i] + (lit[i] - from[i]) * share;
        pixels.data[at + 3] = 255;
      }
    });
    this.picture.getContext("2d").putImageData(pixels, 0, 0);
    const pen = this.canvas.getContext("2d");
    pen.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    pen.clearRect(0, 0, this.width, this.height);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(this.picture, this.left, this.top, this.columns * this.cellWidth, this.rows.length * this.cellHeight);
    this.drawLines(pen);
    this.drawLabels(pen);
    if (this.chosen) {
      const [row, expert] = this.chosen;
      pen.strokeStyle = this.inks.ink;
      pen.lineWidth = 2;
      pen.strokeRect(this.left + expert * this.cellWidth - 1, this.top + row * this.cellHeight - 1,
                     this.cellWidth + 2, this.cellHeight + 2);
    }
  }

  // Draws gaps between cells, if these are large enough.
  drawLines(pen) {
    pen.fillStyle = this.inks.panel;
    const right = this.columns * this.cellWidth;
    const line = 1 / this.ratio;
    if (this.cellHeight >= 4) {
      for (let row = 1; row < this.rows.length; ++row) {
        pen.fillRect(this.left, this.top + row * this.cellHeight - line, right, line);
      }
    }
    if (this.cellWidth < 4) return;
    for (let column = 1; column < this.columns; ++column) {
      pen.fillRect(this.left + column * this.cellWidth - line, this.top, line, this.rows.length * this.cellHeight);
    }
  }

  drawLabels(pen) {
    pen.font = "10.5px system-ui, sans-serif";
    pen.fillStyle = this.inks.soft;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const step = Math.max(1, Math.ceil(13 / this.cellHeight));
    for (let row = 0; row < this.rows.length; row += step) {
      pen.fillText(String(this.rows[row].layer), this.left - 6, this.top + (row + 0.5) * this.cellHeight);
    }
    pen.textAlign = "left";
    let every = 8;
    while (every * this.cellWidth < 34) every *= 2;
    for (let column = 0; column < this.columns; column += every) {
      pen.fillText(String(column), this.left + column * this.cellWidth, 7);
    }
  }

  choose(cell) {
    this.chosen = cell;
    const text = cell ? "Layer " + this.rows[cell[0]].layer + ", expert " + cell[1] + this.describe(...cell) : "";
    if (this.readout.textContent !== text) this.readout.textContent = text;
    this.update();
  }

  point(event) {
    if (!this.measured) return;
    const row = Math.floor((event.offsetY - this.top) / this.cellHeight);
    const expert = Math.floor((event.offsetX - this.left) / this.cellWidth);
    const there = row >= 0 && row < this.rows.length && expert >= 0 && expert < this.rows[row].experts;
    this.choose(there ? [row, expert] : null);
  }

  key(event) {
    const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!step || this.rows.length === 0) return;
    event.preventDefault();
    const [row, expert] = this.chosen || [0, -step[1]];
    const to = Math.max(0, Math.min(this.rows.length - 1, row + step[0]));
    this.choose([to, Math.max(0, Math.min(this.rows[to].experts - 1, expert + step[1]))]);
  }
}

function mapLegend(entries) {
  return make("div", { class: "map-legend" }, ...entries.map(([name, word]) =>
    make("span", {}, swatch("var(--" + name + ")"), word)));
}
