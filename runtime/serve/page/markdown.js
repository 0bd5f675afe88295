// Markdown as elements. A model's output is untrusted: it becomes text nodes in a fixed set of elements, never markup;
// pictures are not loaded, and links open only when clicked.
"use strict";

const DEEPEST = 8;         // nesting of quotes and lists
const LONGEST_LINE = 20000;  // longer ones stay plain text

function markdown(text) {
  const made = document.createDocumentFragment();
  made.append(...blocks(text.replace(/\r\n?/g, "\n").split("\n"), 0));
  return made;
}

const FENCE = /^ {0,3}(```+|~~~+)\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/;
const RULE = /^ {0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( {0,8})(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const TABLE_LINE = /^ {0,3}\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;

function blocks(lines, depth) {
  const made = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    let found;
    if (line.trim() === "") {
      ++at;
    } else if ((found = line.match(FENCE))) {
      let end = at + 1;
      const closes = (each) => each.trim().startsWith(found[1]) && each.trim().length >= found[1].length;
      while (end < lines.length && !closes(lines[end])) ++end;
      const code = make("code", {}, lines.slice(at + 1, end).join("\n"));
      made.push(make("div", { class: "code" }, make("p", { class: "code-name" }, found[2] || "text"),
                     make("pre", { tabindex: "0" }, code)));
      at = end + 1;
    } else if ((found = line.match(HEADING))) {
      made.push(make("h" + Math.min(6, found[1].length + 2), {}, ...inline(found[2].replace(/\s+#+\s*$/, ""), 0)));
      ++at;
    } else if (RULE.test(line)) {
      made.push(make("hr", {}));
      ++at;
    } else if (QUOTE.test(line) && depth < DEEPEST) {
      const end = until(lines, at, (each) => !QUOTE.test(each));
      const quoted = lines.slice(at, end).map((each) => each.replace(QUOTE, ""));
      made.push(make("blockquote", {}, ...blocks(quoted, depth + 1)));
      at = end;
    } else if (ITEM.test(line) && depth < DEEPEST) {
      at = list(lines, at, depth, made);
    } else if (line.includes("|") && at + 1 < lines.length && TABLE_LINE.test(lines[at + 1]) &&
               lines[at + 1].includes("-")) {
      const end = until(lines, at + 2, (each) => !each.includes("|"));
      made.push(table(lines[at], lines.slice(at + 2, end)));
      at = end;
    } else {
      const end = Math.max(at + 1, until(lines, at, (each, i) => i > at && (
        each.trim() === "" || FENCE.test(each) || HEADING.test(each) || RULE.test(each) ||
        (depth < DEEPEST && (QUOTE.test(each) || ITEM.test(each))))));
      made.push(make("p", {}, ...inline(lines.slice(at, end).map((each) => each.trim()).join("\n"), 0)));
      at = end;
    }
  }
  return made;
}

function until(lines, at, ends) {
  while (at < lines.length && !ends(lines[at], at)) ++at;
  return at;
}

// Parses a list with the indented lines below its items; returns the next line.
function list(lines, at, depth, made) {
  const [, indent, , number] = lines[at].match(ITEM);
  const is_ordered = number !== undefined;
  const items = make(is_ordered ? "ol" : "ul", is_ordered && number !== "1" ? { start: number } : {});
  while (at < lines.length) {
    const found = lines[at].match(ITEM);
    if (!found || found[1].length > indent.length + 1 || (found[3] !== undefined) !== is_ordered) break;
    const end = until(lines, at + 1, (each, i) =>
      (each.trim() !== "" && !/^ {2,}/.test(each.slice(indent.length))) ||
      (each.trim() === "" && (i + 1 >= lines.length || !/^ {2,}/.test(lines[i + 1].slice(indent.length)))));
    const inner = lines.slice(at + 1, end).map((each) => each.slice(indent.length).replace(/^ {1,4}/, ""));
    const parts = blocks([found[4], ...inner], depth + 1);
    const is_text = parts.length > 0 && parts[0].tagName === "P";  // drop the paragraph's margins
    items.append(make("li", {}, ...(is_text ? [...parts[0].childNodes, ...parts.slice(1)] : parts)));
    at = end;
    if (at + 1 < lines.length && lines[at].trim() === "" && ITEM.test(lines[at + 1])) ++at;
  }
  made.push(items);
  return at;
}

function table(head, rows) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((each) => each.trim());
  const row = (line, tag) => make("tr", {}, ...cells(line).map((each) => make(tag, {}, ...inline(each, 0))));
  return make("div", { class: "scroll", tabindex: "0" },
              make("table", {}, make("thead", {}, row(head, "th")),
                   make("tbody", {}, ...rows.map((each) => row(each, "td")))));
}

const MARKS = [["**", "strong"], ["__", "strong"], ["~~", "s"], ["*", "em"], ["_", "em"]];

// Parses code, emphasis, links and line breaks within a paragraph.
function inline(text, depth) {
  if (depth > DEEPEST || text.length > LONGEST_LINE) return [text];
  const made = [];
  let plain = "";
  const flush = () => {
    if (plain) made.push(plain);
    plain = "";
  };
  let at = 0;
  while (at < text.length) {
    const part = span(text, at, depth);
    if (!part) {
      plain += text[at++];
      continue;
    }
    flush();
    made.push(part.node);
    at = part.end;
  }
  flush();
  return made;
}

// The element that begins at `at`, and its end; null: a plain character.
function span(text, at, depth) {
  const c = text[at];
  if (c === "\\" && /[\\`*_~\[\]()#|>-]/.test(text[at + 1] || "")) return { node: text[at + 1], end: at + 2 };
  if (c === "\n") return { node: make("br", {}), end: at + 1 };
  if (c === "`") {
    const mark = text.slice(at).match(/^`+/)[0];
    const end = text.indexOf(mark, at + mark.length);
    if (end < 0) return null;
    return { node: make("code", {}, text.slice(at + mark.length, end).trim()), end: end + mark.length };
  }
  if (c === "[" || (c === "!" && text[at + 1] === "[")) return link(text, c === "!" ? at + 1 : at, depth);
  for (const [mark, tag] of MARKS) {
    if (!text.startsWith(mark, at)) continue;
    const inner = at + mark.length;
    if (/\s/.test(text[inner] || " ") || (c === "_" && /\w/.test(text[at - 1] || ""))) return null;
    let end = text.indexOf(mark, inner + 1);
    if (mark.length === 1 && end >= 0 && text[end + 1] === c) end = text.indexOf(mark, end + 2);
    if (end < 0 || /\s/.test(text[end - 1])) return null;
    return { node: make(tag, {}, ...inline(text.slice(inner, end), depth + 1)), end: end + mark.length };
  }
  return null;
}

function link(text, at, depth) {
  const middle = text.indexOf("](", at);
  const end = middle < 0 ? -1 : text.indexOf(")", middle);
  if (end < 0 || text.slice(at, middle).includes("\n")) return null;
  const address = text.slice(middle + 2, end).trim().split(/\s/)[0];
  const words = inline(text.slice(at + 1, middle), depth + 1);
  if (!/^(https?:|mailto:)/i.test(address)) return null;
  const made = make("a", { href: address, rel: "noopener noreferrer", target: "_blank", title: printable(address) },
                    ...(words.length ? words : [printable(address)]));
  return { node: made, end: end + 1 };
}
