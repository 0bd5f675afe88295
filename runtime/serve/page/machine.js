// Shows the machine's activity from the events of /machine; docs/serve.md lists the fields. Rates cover the last
// seconds with passes; the stream is open only while the page is visible.
"use strict";

const WINDOW_SECONDS = 4;
const AGAIN_MS = 2000;  // before reconnecting to a lost server
const SOURCES = { link: "Link to the GPU", disk: "Disk", network: "Network", prefetched: "Read ahead" };

class Machine {
  constructor() {
    this.history = [];  // events, oldest first
    this.abort = null;
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    this.open();
  }

  close() {
    if (this.abort) this.abort.abort();
    this.abort = null;
  }

  async open() {
    if (this.abort || document.hidden) return;
    const abort = new AbortController();
    this.abort = abort;
    try {
      for await (const event of eventStream(await ask("/machine", undefined, abort.signal))) {
        if (event.name === "machine") this.begin(JSON.parse(event.data));
        if (event.name === "work") this.take(JSON.parse(event.data));
      }
    } catch (error) {
      if (abort.signal.aborted) return;
      if (error instanceof KeyNeeded) {
        this.abort = null;
        return needKey(error) ? undefined : this.open();
      }
    }
    if (this.abort !== abort) return;
    this.abort = null;
    find("state").textContent = "no connection to the server";
    setTimeout(() => this.open(), AGAIN_MS);
  }

  begin(machine) {
    this.machine = machine;
    this.history = [];
    this.span = null;
    this.speed = { answer: 0, prompt: 0 };
    this.times = machine.rows.map((row) => new Uint32Array(row.places.length));
    const rows = machine.rows.map((row) => ({ layer: row.layer, experts: row.places.length }));
    const words = [", read when it is wanted", ", in memory", ", in GPU memory"];
    this.map = new ExpertMap(find("map"), rows, ["map-absent", "map-host", "map-device"], (row, expert) =>
      words[this.map.base[row][expert]] + "; chosen " + count(this.times[row][expert], "time") +
      " since the page looks");
    machine.rows.forEach((row, i) =>
      [...row.places].forEach((place, expert) => this.map.put(i, expert, Number(place))));
    this.map.show();
    find("map-legend").replaceChildren(mapLegend([["map-lit", "just chosen"], ["map-device", "in GPU memory"],
                                                  ["map-host", "in memory"], ["map-absent", "not here"]]
      .filter(([name]) => name !== "map-device" || machine.gpu)));
  }

  take(work) {
    if (!this.map) return;
    if (this.map.calm.matches && work.picked.length) this.map.dim();
    for (const [row, pairs] of work.moved) {
      for (let i = 0; i < pairs.length; i += 2) this.map.put(row, pairs[i], pairs[i + 1]);
    }
    for (const [row, pairs] of work.picked) {
      for (let i = 0; i < pairs.length; i += 2) {
        this.map.light(row, pairs[i], 1);
        this.times[row][pairs[i]] += pairs[i + 1];
      }
    }
    if (work.picked.length || work.moved.length) this.map.show();
    this.map.label("Map of " + count(this.machine.rows.length, "layer") + ": " + exact(work.in_host) +
                   " experts in memory" + (work.in_device ? ", " + exact(work.in_device) + " in GPU memory" : ""));
    this.history.push(work);
    while (this.history.length > 2 && work.seconds - this.history[1].seconds > WINDOW_SECONDS) this.history.shift();
    const before = this.history[0];
    if (work.passes.count > before.passes.count || !this.span) this.span = [before, work];
    this.showState(work);
    this.showFigures(work);
    this.showTiers(work);
    this.showWaits();
  }

  // Growth of a count over the last seconds with passes.
  grown(of) {
    const [before, now] = this.span.map((each) => of(each) || 0);
    return Math.max(0, now - before);
  }

  per_second(of) {
    const seconds = this.grown((each) => each.passes.seconds);
    return seconds > 0 ? this.grown(of) / seconds : 0;
  }

  // Tokens per second. For answers: while no prompt was read, if there was such a time.
  speeds() {
    const sums = { prompt: [0, 0], answer: [0, 0] };
    for (let i = 1; i < this.history.length; ++i) {
      const [before, now] = [this.history[i - 1], this.history[i]];
      const kind = now.tokens.prompt > before.tokens.prompt ? "prompt" : "answer";
      sums[kind][0] += now.tokens[kind] - before.tokens[kind];
      sums[kind][1] += now.passes.seconds - before.passes.seconds;
    }
    for (const kind of ["prompt", "answer"]) {
      const [tokens, seconds] = sums[kind];
      if (tokens > 0 && seconds > 0) this.speed[kind] = tokens / seconds;
    }
    if (sums.answer[0] === 0) this.speed.answer = this.per_second((each) => each.tokens.answer) || this.speed.answer;
    return this.speed;
  }

  showState(work) {
    const parts = [];
    if (work.pass && (work.pass.seconds > 0.5 || work.requests.running)) {
      parts.push(work.pass.reads_prompt ? "reads a prompt" : "answers");
      if (work.pass.seconds > 1) parts.push("this pass " + work.pass.seconds.toFixed(0) + " s");
      if (work.pass.seconds > 1 && work.pass.layer !== undefined) parts.push("layer " + work.pass.layer);
    } else {
      parts.push(work.requests.running ? "answers" : "idle");
    }
    if (work.requests.places > 1) parts.push(work.requests.running + " of " + work.requests.places + " places");
    if (work.requests.waiting) parts.push(work.requests.waiting + " wait");
    find("state").textContent = parts.join(" · ");
  }

  showFigures(work) {
    const speed = this.speeds();
    const figures = [["Answer", rate(speed.answer), "tokens/s"], ["Prompt", rate(speed.prompt), "tokens/s"]];
    if (work.drafts.drafted > 0) {
      const { drafted, accepted } = work.drafts;
      figures.push(["Drafts accepted", percent(accepted, drafted), exact(drafted) + " drafted"]);
    }
    figures.push(["Answered", exact(work.tokens.answer), "tokens"]);
    figures.push(["Prompts", exact(work.tokens.prompt), "tokens, " + exact(work.tokens.kept) + " kept"]);
    fill("figures", ...figures.map(([name, value, unit]) =>
      make("div", {}, make("dt", {}, name), make("dd", {}, value), make("dd", {}, unit))));
    find("figures").dataset.answered = work.tokens.answer;
  }

  showTiers(work) {
    const rows = [];
    const tier = (name, cache, used, level) => {
      if (!cache || !cache.slots) return;
      const hits = this.hits(level);
      const asked = hits + this.grown((each) => each[level] && each[level].misses);
      const slots = exact(used) + " of " + exact(cache.slots) + " slots, " + human(cache.bytes);
      rows.push(this.tierRow(name, used / cache.slots, "map-" + level, slots,
                             asked ? percent(hits, asked) + " hits" : "no demands yet"));
    };
    tier("GPU memory", work.device, work.in_device, "device");
    tier("Memory", work.host, work.in_host, "host");
    if (!work.device && work.in_device) {
      rows.push(this.tierRow("GPU memory", 1, "map-device", "all " + exact(work.in_device) + " experts", ""));
    }
    const bytes = (each, key) => (each.bytes && each.bytes[key]) || 0;
    const sources = Object.entries(SOURCES)
      .filter(([key]) => bytes(work, key) > 0)
      .map(([key, word]) => make("tr", {}, make("th", { scope: "row" }, word),
        make("td", {}, human(Math.round(this.per_second((each) => bytes(each, key)))) + "/s"),
        make("td", {}, human(bytes(work, key)) + " in all")));
    if (sources.length) rows.push(make("table", { class: "sources" }, make("tbody", {}, ...sources)));
    fill("tiers", ...rows);
  }

  hits(level) {
    return this.grown((each) => each[level] && each[level].hits + each[level].late);
  }

  tierRow(name, share, colour_name, left, right) {
    const bar = make("i", {});
    bar.style.width = (100 * Math.min(1, share)).toFixed(1) + "%";
    bar.style.background = "var(--" + colour_name + ")";
    return make("div", { class: "tier" },
                make("p", {}, make("b", {}, name), make("span", {}, left), make("span", { class: "right" }, right)),
                make("div", { class: "track", "aria-hidden": "true" }, bar));
  }

  // Shares of a pass's time: the stages of a CPU's clock, and the waits for experts.
  showWaits() {
    const all = this.grown((each) => each.passes.seconds);
    if (all <= 0) return;
    const waited = this.grown((each) => each.host && each.host.waiting_seconds) +
                   this.grown((each) => each.device && each.device.waiting_seconds);
    const stage = (name) => this.grown((each) => each.stages && each.stages[name]);
    const parts = [["experts to arrive", waited, 1], ["experts computed", Math.max(0, stage("experts") - waited), 0],
                   ["attention", stage("attention"), 2], ["layers to arrive", stage("waiting"), 5],
                   ["shared and dense MLPs", stage("mlp"), 3], ["output head", stage("head"), 4],
                   ["router", stage("router"), 9]];
    const named = parts.reduce((sum, part) => sum + part[1], 0);
    parts.push(["the rest", Math.max(0, all - named), 7]);
    const whole = Math.max(all, named);
    const shown = parts.filter((part) => part[1] > whole / 500);
    const bar = make("div", { class: "stack", "aria-hidden": "true" });
    for (const [, seconds, number] of shown) {
      const piece = make("i", {});
      piece.style.flexGrow = seconds / whole;
      piece.style.background = colour(number);
      bar.append(piece);
    }
    const passes = this.grown((each) => each.passes.count);
    const each_ms = exact(Math.round((all / passes) * 10000) / 10);
    fill("waits", bar,
         make("ul", { class: "shares" }, ...shown.map(([word, seconds, number]) =>
           make("li", {}, swatch(colour(number)), word, make("b", {}, percent(seconds, whole))))),
         make("p", { class: "note" },
              each_ms + " ms a pass, of the last " + exact(passes) + (passes === 1 ? " pass" : " passes")));
  }
}

function rate(number) {
  if (number <= 0) return "–";
  return number < 10 ? number.toFixed(2) : number < 100 ? number.toFixed(1) : exact(Math.round(number));
}
