// The page of a recorded trace: runtime/replay/trace_page.h says what its data is.
"use strict";

const HEATS = 5;

class TracePlayer {
  constructor(data) {
    this.frames = data.frames;
    this.times = data.rows.map(([, experts]) => new Uint32Array(experts));
    this.at = -1;
    this.map = new ExpertMap(find("map"), data.rows.map(([layer, experts]) => ({ layer, experts })),
                             ["map-absent", ...Array.from({ length: HEATS }, (_, i) => "map-heat-" + (i + 1))],
                             (row, expert) => ": chosen " + count(this.times[row][expert], "time") + " so far");
    this.map.halfLife = Infinity;
    find("time").max = Math.max(0, this.frames.length - 1);
    find("time").addEventListener("input", () => {
      this.pause();
      this.go(Number(find("time").value));
    });
    find("play").addEventListener("click", () => (this.timer ? this.pause() : this.play()));
    find("speed").addEventListener("change", () => this.timer && this.play());
    fill("legend", mapLegend([["map-lit", "chosen in this pass"], ["map-heat-5", "often so far"],
                              ["map-heat-1", "seldom so far"], ["map-absent", "never so far"]]));
    if (this.frames.length) this.go(0);
  }

  play() {
    clearInterval(this.timer);
    if (this.at + 1 >= this.frames.length) this.go(0);
    find("play").textContent = "Pause";
    this.timer = setInterval(() => {
      if (this.at + 1 >= this.frames.length) return this.pause();
      this.go(this.at + 1);
    }, 1000 / Number(find("speed").value));
  }

  pause() {
    clearInterval(this.timer);
    this.timer = 0;
    find("play").textContent = "Play";
  }

  go(to) {
    if (to < this.at) {
      for (const row of this.times) row.fill(0);
      this.at = -1;
    }
    while (this.at < to) {
      for (const [row, pairs] of this.frames[++this.at].picked) {
        for (let i = 0; i < pairs.length; i += 2) this.times[row][pairs[i]] += pairs[i + 1];
      }
    }
    const most = this.times.reduce((most, row) => row.reduce((a, b) => Math.max(a, b), most), 1);
    // Five colours over the logarithms of the counts.
    const heat = (times) => 1 + Math.min(HEATS - 1, Math.floor((HEATS * Math.log(times)) / Math.log(most + 1)));
    this.times.forEach((row, i) => row.forEach((times, expert) =>
      this.map.put(i, expert, times === 0 ? 0 : heat(times))));
    this.map.dim();
    const frame = this.frames[to];
    for (const [row, pairs] of frame.picked) {
      for (let i = 0; i < pairs.length; i += 2) this.map.light(row, pairs[i], 1);
    }
    this.map.show();
    find("time").value = to;
    const passes = (frame.passes === 1 ? "Pass " : exact(frame.passes) + " passes from ") + exact(frame.pass);
    const text = passes + (frame.prompt ? ", prompt" : ", decode") + ": " + count(frame.rows, "token") + ", " +
      count(this.map.lit(), "expert") + " of " + exact(Number(this.map.canvas.dataset.cells));
    fill("frame", text);
    find("time").setAttribute("aria-valuetext", text);
    this.map.label("Map of experts. " + text);
  }
}

const data = JSON.parse(find("data").textContent);
fill("name", printable(data.name));
fill("about", printable(data.about));
document.title = printable(data.name) + " – dsrun replay";
const series = seriesOf(data.results);
new ResizeObserver(() => drawChart(series, data.results.experts)).observe(find("chart"));
drawTable(series, data.results.experts);
const player = new TracePlayer(data);
