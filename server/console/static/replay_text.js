// The text of each item as it was after an event; it grows in text nodes, and never as HTML.

import { deltaOf, doneText } from "./event_log.js";

const TAIL_CHARS = 20000; // of a part while it grows: a browser lays out all of a part with each frame

export class ReplayText {
  constructor(container, log) {
    this.container = container;
    this.log = log;
    this.clear();
  }

  clear() {
    this.texts = new Map();
    this.nodes = new Map();
    this.titles = new Map();
    this.changed = new Set();
    this.position = -1;
    this.compared = 0;
    this.different = 0;
    this.container.replaceChildren();
  }

  // Shows the events up to that number, which must be loaded; while it grows, of a long part the end.
  show(number, grows) {
    if (number < this.position) this.clear();
    for (let next = this.position + 1; next <= number; next += 1) this.apply(this.log.events[next]);
    this.position = Math.max(this.position, number);
    this.paint(grows);
  }

  apply(event) {
    const item = event.payload?.item;
    if (event.type === "response.output_item.added" && item) {
      this.titles.set(event.output_index ?? event.payload.output_index, [item.type, item.name].filter(Boolean).join(" "));
    }
    const added = deltaOf(event);
    if (added) {
      this.texts.set(added.part, (this.texts.get(added.part) ?? "") + added.delta);
      this.changed.add(added.part);
    }
    const done = doneText(event);
    if (!done) return;
    this.compared += 1;
    if ((this.texts.get(done.part) ?? "") !== done.text) this.different += 1;
  }

  paint(grows) {
    this.changed.forEach((part) => {
      const text = this.texts.get(part);
      const isCut = grows && text.length > TAIL_CHARS;
      if (!this.nodes.has(part)) this.nodes.set(part, this.makeNode(part));
      this.nodes.get(part).data = isCut ? `… ${text.slice(-TAIL_CHARS)}` : text;
      if (!isCut) this.changed.delete(part);
    });
  }

  makeNode(part) {
    const item = part.split("-")[0];
    const title = document.createElement("h3");
    title.textContent = `${item} ${this.titles.get(Number(item)) ?? ""}`;
    const block = document.createElement("pre");
    block.id = `replay-text-${part}`;
    block.className = "replay-part";
    block.dir = "auto";
    const node = document.createTextNode("");
    block.append(node);
    this.container.append(title, block);
    return node;
  }

  // What is said at the end of a replay.
  get verdict() {
    if (this.compared === 0) return "";
    return this.different === 0
      ? "The replayed text is exactly the stored one."
      : `The replayed text of ${this.different} parts differs from the stored one.`;
  }
}
