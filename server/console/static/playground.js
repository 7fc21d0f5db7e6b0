// The playground: follows the answer that is being generated, lists its events, sends with Ctrl+Enter.

import { follow } from "./event_stream.js";

const MAX_EVENTS = 500;
const PAYLOAD_CHARS = 400;
const form = document.getElementById("playground");
const list = document.getElementById("events");
const running = document.getElementById("running");

function showEvent(event) {
  const line = document.createElement("li");
  line.textContent = `${event.sequence_number} ${event.type} ${JSON.stringify(event).slice(0, PAYLOAD_CHARS)}`;
  list.append(line);
  if (list.childElementCount > MAX_EVENTS) list.firstElementChild.remove();
  list.scrollTop = list.scrollHeight;
}

function add(id, text) {
  const place = document.getElementById(id);
  place.hidden = false;
  place.append(text);
}

function showDelta(event) {
  if (event.type === "response.output_text.delta" || event.type === "response.refusal.delta") {
    add("running-text", event.delta);
  } else if (event.type.startsWith("response.reasoning") && event.type.endsWith(".delta")) {
    add("running-reasoning", event.delta);
  } else if (typeof event.delta === "string") {
    add("running-calls", event.delta);
  } else if (event.type === "response.output_item.added" && event.item.name) {
    add("running-calls", `${event.item.name} `);
  }
}

async function watch(name) {
  for await (const event of follow(`/console/responses/${name}/stream`)) {
    showEvent(event);
    showDelta(event);
    if (event.response) document.getElementById("running-status").textContent = event.response.status;
  }
  location.reload();
}

if (running) {
  watch(running.dataset.response).catch((error) => add("running-text", `\n${error}`));
} else if (list.dataset.response) {
  const card = document.getElementById("events-card");
  const tell = async () => {
    for await (const event of follow(`/console/responses/${list.dataset.response}/stream`)) showEvent(event);
  };
  card.addEventListener("toggle", () => tell().catch(() => {}), { once: true });
}

form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
