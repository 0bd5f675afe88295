// Elements and text. Everything from the checkpoint passes through text nodes, never through markup.
"use strict";

// An element with properties ({class, text, data: {...}, ...attributes}) and children (elements or strings).
function make(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (name === "class") made.className = value;
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

function find(id) {
  return document.getElementById(id);
}

function fill(id, ...children) {
  find(id).replaceChildren(...children);
}

// Control characters and those that turn the direction of writing would make a name look like another.
const DECEIVING = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff]/g;
const LONGEST = 400;

function printable(name) {
  const shown = name.replace(DECEIVING, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0"));
  return shown.length <= LONGEST ? shown : shown.slice(0, LONGEST) + "… (" + exact(name.length) + " characters)";
}

// A name that may be parted behind its dots and the like where the line is too short.
function nameCode(name) {
  const made = make("code", {});
  for (const part of printable(name).split(/(?<=[._/-])/)) made.append(part, make("wbr", {}));
  return made;
}

function exact(number) {
  return number.toLocaleString("en-US", { maximumFractionDigits: 2 });
}

// "44.05 MB": decimal units, as the other verbs print.
function human(bytes) {
  const units = ["bytes", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (bytes >= 1000 && unit < units.length - 1) {
    bytes /= 1000;
    ++unit;
  }
  if (unit === 0) return bytes + " " + (bytes === 1 ? "byte" : "bytes");
  return bytes.toFixed(bytes < 10 ? 2 : 1) + " " + units[unit];
}

function count(number, word) {
  return exact(number) + " " + word + (number === 1 ? "" : "s");
}

function percent(part, whole) {
  if (whole === 0) return "–";
  if (part > 0 && part * 1000 < whole) return "< 0.1 %";
  return (Math.floor((1000 * part) / whole) / 10).toFixed(part === whole || part === 0 ? 0 : 1) + " %";
}

// Colours that most colour-blind people tell apart (after Okabe and Ito), and which differ in brightness, too.
const COLOURS = ["#3d8fc6", "#e6a11b", "#1fa37b", "#d48ab2", "#7cc8ee",
                 "#dc6a2b", "#e8dc55", "#8c8fa8", "#b79a63", "#9d7ad1"];

function colour(number) {
  return COLOURS[number % COLOURS.length];
}

function swatch(fill_colour) {
  const made = make("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = fill_colour;
  return made;
}
