// The conversation: its messages, the current answer, and their rendering.
"use strict";

class Chat {
  constructor() {
    this.messages = [];  // {role, content, reasoning, calls, note, error}
    this.abort = null;   // for the current answer
    this.list = find("messages");
    this.show();
  }

  is_answering() {
    return this.abort !== null;
  }

  begin() {
    this.stop();
    this.messages = [];
    this.show();
    find("question").focus();
  }

  stop() {
    if (this.abort) this.abort.abort();
  }

  send(text) {
    this.messages.push({ role: "user", content: text });
    this.answer();
  }

  // Generates the last answer again.
  retry() {
    if (this.abort) return;
    while (this.messages.length && this.messages.at(-1).role !== "user") this.messages.pop();
    if (this.messages.length) this.answer();
  }

  request() {
    const number = (id) => (find(id).value.trim() === "" ? undefined : Number(find(id).value));
    const system = find("system").value.trim();
    const said = this.messages.filter((each) => each.role === "user" || each.content !== "");
    const thinking = find("thinking").value;
    return {
      messages: [...(system ? [{ role: "system", content: system }] : []),
                 ...said.map(({ role, content }) => ({ role, content }))],
      temperature: number("temperature"),
      max_tokens: number("max-tokens"),
      chat_template_kwargs: thinking ? { thinking: thinking === "on" } : undefined,
      stream: true,
      stream_options: { include_usage: true },
    };
  }

  async answer() {
    const body = this.request();
    const message = { role: "assistant", content: "", reasoning: "", calls: [], note: "", error: "" };
    const abort = new AbortController();
    this.messages.push(message);
    this.abort = abort;
    this.show();
    this.announce("The answer begins.");
    try {
      for await (const event of eventStream(await ask("/v1/chat/completions", body, abort.signal))) {
        if (event.comment) message.note = event.comment;
        if (!event.data || event.data === "[DONE]") {
          this.renew(message);
          continue;
        }
        this.take(message, JSON.parse(event.data));
        this.renew(message);
      }
    } catch (error) {
      if (abort.signal.aborted) message.note = "stopped";
      else message.error = error.message;
      if (error instanceof KeyNeeded) needKey(error);
    }
    if (this.abort === abort) this.abort = null;
    this.announce(message.error || (message.note === "stopped" ? "Stopped." : "The answer is complete."));
    this.show();
  }

  take(message, chunk) {
    if (chunk.error) throw new Error(chunk.error.message);
    const choice = chunk.choices && chunk.choices[0];
    if (chunk.timings && chunk.timings.predicted_n > 0) message.timings = chunk.timings;
    if (chunk.usage) message.usage = chunk.usage;
    if (!choice) return;
    if (choice.finish_reason === "length") message.note = "cut at the most tokens, or the end of the context";
    const delta = choice.delta || {};
    if (delta.content || delta.reasoning_content) message.note = "";
    message.content += delta.content || "";
    message.reasoning += delta.reasoning_content || "";
    for (const call of delta.tool_calls || []) {
      const known = message.calls[call.index] || (message.calls[call.index] = { name: "", arguments: "" });
      known.name += (call.function && call.function.name) || "";
      known.arguments += (call.function && call.function.arguments) || "";
    }
  }

  announce(text) {
    find("announce").textContent = text;
  }

  // Renders everything, after a message was added or removed, or an answer has ended.
  show() {
    const answering = this.is_answering();
    find("send").hidden = answering;
    find("stop").hidden = !answering;
    this.list.dataset.answering = answering;
    if (this.messages.length === 0) {
      this.list.replaceChildren(make("p", { class: "empty" }, "Ask the model something."));
      return;
    }
    this.list.replaceChildren(...this.messages.map((each) => this.element(each)));
    this.list.scrollTop = this.list.scrollHeight;
  }

  // Redraws the current answer once per frame; the view follows it unless the reader has scrolled up.
  renew(message) {
    message.is_stale = true;
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      const last = this.messages.at(-1);
      if (!last || !last.is_stale || !this.list.lastElementChild) return;
      last.is_stale = false;
      const follows = this.list.scrollHeight - this.list.scrollTop - this.list.clientHeight < 60;
      const before = this.list.lastElementChild.querySelector("details");
      const made = this.element(last);
      const after = made.querySelector("details");
      if (before && after) after.open = before.open;
      this.list.lastElementChild.replaceWith(made);
      if (follows) this.list.scrollTop = this.list.scrollHeight;
    });
  }

  element(message) {
    const is_user = message.role === "user";
    const made = make("article", { class: "message " + message.role }, make("h2", {}, is_user ? "You" : "Model"));
    if (is_user) {
      made.append(make("div", { class: "text plain" }, message.content));
      return made;
    }
    const is_last = message === this.messages.at(-1);
    const under_way = is_last && this.is_answering();
    if (message.reasoning) {
      const words = count(message.reasoning.trim().split(/\s+/).length, "word");
      const so_far = under_way && !message.content ? " so far" : "";
      made.append(make("details", { class: "reasoning" },
                       make("summary", {}, "Reasoning, " + words + so_far),
                       make("div", { class: "text" }, markdown(message.reasoning))));
    }
    if (message.content) made.append(make("div", { class: "text" }, markdown(message.content)));
    for (const call of message.calls.filter(Boolean)) {
      made.append(make("div", { class: "call" }, make("p", {}, "Calls ", make("code", {}, printable(call.name))),
                       make("pre", { tabindex: "0" }, make("code", {}, call.arguments))));
    }
    if (message.error) made.append(make("p", { class: "error" }, printable(message.error)));
    if (under_way && !message.content && !message.reasoning) {
      made.append(make("p", { class: "note" }, message.note || "waits for the model"));
    }
    if (!under_way) made.append(this.foot(message, is_last));
    return made;
  }

  foot(message, is_last) {
    const foot = make("p", { class: "foot" });
    const parts = [];
    const times = message.timings;
    if (times) {
      parts.push(count(times.predicted_n, "token"));
      if (times.predicted_ms > 0 && times.predicted_n > 1) {
        parts.push(exact(Math.round(((times.predicted_n - 1) * 10000) / times.predicted_ms) / 10) + "/s");
      }
      const kept = times.cache_n ? ", " + exact(times.cache_n) + " of it kept" : "";
      parts.push("prompt " + exact(times.prompt_n + times.cache_n) + kept);
    }
    if (message.note) parts.push(message.note);
    foot.append(parts.join(" · "));
    if (is_last) {
      const again = make("button", { type: "button", class: "quiet" }, "Retry");
      again.addEventListener("click", () => this.retry());
      foot.append(" ", again);
    }
    return foot;
  }
}
