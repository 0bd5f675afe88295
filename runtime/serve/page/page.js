// The page as a whole: keyboard, buttons, the server's API key.
"use strict";

let chat, machine;

// Asks for a key, or another one; false: the rejected key has been replaced meanwhile.
function needKey(error) {
  if (error.key !== sessionStorage.getItem(KEY)) return false;
  find("key-form").hidden = false;
  find("key-note").textContent = sessionStorage.getItem(KEY) ? error.message + "." : "It is kept in this tab only.";
  find("key").focus();
  return true;
}

async function showModel() {
  try {
    const props = await (await ask("/props")).json();
    find("model").textContent = printable(props.model) + " · " + exact(props.context) + " positions";
    document.title = printable(props.model) + " – dspack";
  } catch (error) {
    if (error instanceof KeyNeeded) needKey(error);
  }
}

function submit() {
  const text = find("question").value.trim();
  if (text === "" || chat.is_answering()) return;
  find("question").value = "";
  chat.send(text);
}

find("compose").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
find("question").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (chat.is_answering()) chat.stop();
  else find("settings").open = false;
});
find("stop").addEventListener("click", () => {
  chat.stop();
  find("question").focus();
});
find("new").addEventListener("click", () => chat.begin());
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(KEY, find("key").value);
  find("key").value = "";
  find("key-form").hidden = true;
  showModel();
  machine.open();
  find("question").focus();
});
for (const choice of document.querySelectorAll("input[name=view]")) {
  choice.addEventListener("change", () => (document.body.dataset.view = choice.value));
}

chat = new Chat();
machine = new Machine();
find("question").focus();
showModel();
