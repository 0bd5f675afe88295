// Requests to the page's own server with the key that its user has typed, and the events of answers.
"use strict";

const KEY = "dspack-key";  // in this tab's session storage

class KeyNeeded extends Error {
  constructor(message, key) {
    super(message);
    this.key = key;  // the rejected key; null: none was sent
  }
}

async function ask(path, body, signal) {
  const headers = {};
  const key = sessionStorage.getItem(KEY);
  if (key) headers.Authorization = "Bearer " + key;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const response = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, signal, cache: "no-store",
                                       body: body === undefined ? undefined : JSON.stringify(body) });
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const message = (told && told.error && told.error.message) || "the server answered with status " + response.status;
  throw response.status === 401 ? new KeyNeeded(message, key) : new Error(message);
}

// Yields {name, data} or {comment} for each event as it arrives.
async function* eventStream(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let pending = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    pending += value;
    let end;
    while ((end = pending.indexOf("\n\n")) >= 0) {
      const event = {};
      const data = [];
      for (const line of pending.slice(0, end).split("\n")) {
        if (line.startsWith(":")) event.comment = line.slice(1).trim();
        else if (line.startsWith("event: ")) event.name = line.slice(7);
        else if (line.startsWith("data: ")) data.push(line.slice(6));
      }
      if (data.length) event.data = data.join("\n");
      pending = pending.slice(end + 2);
      yield event;
    }
  }
}
