// The playground: follows the answer that is being generated, lists its events, sends with Ctrl+Enter.

import { isForked } from "./live_stream.js";

const MAX_EVENTS = 500;
const PAYLOAD_CHARS = 400;
const RETRY_MS = 1500;
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

// Calls `onEvent` with each event of a response once, in order, and `onEnd` after the last one. A connection
// that breaks is made again by the EventSource, or here if the server refused it. If the database has lost events
// that were shown, the page is loaded again.
function follow(name, onEvent, onEnd) {
  let last = -1;
  let lastId = "";
  const connect = () => {
    const after = last < 0 ? "" : `?starting_after=${lastId}`;
    const address = `/console/responses/${name}/stream${after}`;
    const source = new EventSource(address);
    source.addEventListener("message", ({ data, lastEventId }) => {
      if (data === "[DONE]") {
        source.close();
        onEnd();
        return;
      }
      const event = JSON.parse(data);
      if (event.type === "error") {
        source.close();
        location.reload();
        return;
      }
      if (event.sequence_number <= last) return;
      last = event.sequence_number;
      lastId = lastEventId;
      onEvent(event);
    });
    source.addEventListener("error", async () => {
      if (source.readyState !== EventSource.CLOSED) return;
      if (await isForked(address, lastId)) location.reload();
      else setTimeout(connect, RETRY_MS);
    });
  };
  connect();
}

function showRunning(event) {
  showEvent(event);
  showDelta(event);
  if (event.response) document.getElementById("running-status").textContent = event.response.status;
}

if (running) {
  follow(running.dataset.response, showRunning, () => location.reload());
} else if (list.dataset.response) {
  const card = document.getElementById("events-card");
  card.addEventListener("toggle", () => follow(list.dataset.response, showEvent, () => {}), { once: true });
}

form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
});
