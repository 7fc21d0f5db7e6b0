// The list of events, of which only the rows in sight are in the document, and the payload of the chosen one.

import { deltaOf } from "./event_log.js";

const ROW_PX = 22;
const SHOWN_CHARS = 80;
const MAX_PAYLOAD_CHARS = 100000;

function time(milliseconds) {
  return milliseconds < 10000 ? `${Math.round(milliseconds)} ms` : `${(milliseconds / 1000).toFixed(1)} s`;
}

function words(event) {
  const delta = deltaOf(event)?.delta;
  return delta === undefined ? "" : JSON.stringify(delta.slice(0, SHOWN_CHARS));
}

export class EventList {
  // `onChoose` gets the number of a chosen event, `onMissing` that of one in sight that is not loaded.
  constructor(container, payload, log, onChoose, onMissing) {
    Object.assign(this, { container, payload, log, onChoose, onMissing });
    this.space = container.firstElementChild;
    this.position = -1;
    container.addEventListener("scroll", () => this.render());
    container.addEventListener("click", (event) => this.choose(event.target.closest("[data-number]")));
    container.addEventListener("keydown", (event) => this.onKey(event));
  }

  choose(row) {
    if (row) this.onChoose(Number(row.dataset.number));
  }

  onKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.onChoose(Math.min(Math.max(this.position + step, 0), this.log.end - 1));
  }

  // Makes the event of that number the chosen one, and brings it into sight.
  show(number) {
    this.position = number;
    const top = number * ROW_PX;
    const { scrollTop, clientHeight } = this.container;
    this.space.style.height = `${this.log.end * ROW_PX}px`;
    if (top < scrollTop || top + ROW_PX > scrollTop + clientHeight) this.container.scrollTop = top - clientHeight / 2;
    this.render();
  }

  render() {
    const first = Math.max(0, Math.floor(this.container.scrollTop / ROW_PX));
    const last = Math.min(this.log.end, first + Math.ceil(this.container.clientHeight / ROW_PX) + 1);
    this.space.style.height = `${this.log.end * ROW_PX}px`;
    const rows = [];
    for (let number = first; number < last; number += 1) rows.push(this.row(number));
    this.space.replaceChildren(...rows);
    if (last > this.log.events.length && last <= this.log.end) this.onMissing(last - 1);
  }

  row(number) {
    const event = this.log.events[number];
    const row = document.createElement("div");
    row.className = number === this.position ? "event chosen" : "event";
    row.dataset.number = number;
    row.style.top = `${number * ROW_PX}px`;
    row.textContent = event ? `${number}  ${time(event.ms)}  ${event.type}  ${words(event)}` : `${number}  …`;
    return row;
  }

  showPayload(number) {
    const event = this.log.events[number];
    this.payload.hidden = !event;
    if (!event) return;
    const text = JSON.stringify(event, null, 2);
    const rest = text.length - MAX_PAYLOAD_CHARS;
    this.payload.textContent = rest > 0 ? `${text.slice(0, MAX_PAYLOAD_CHARS)}\n… ${rest} more characters` : text;
  }
}
