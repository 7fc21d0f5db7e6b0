// The text of each item as it was after an event; it grows in text nodes, and never as HTML.

import { deltaOf, doneText } from "./event_log.js";

export class ReplayText {
  constructor(container, log) {
    this.container = container;
    this.log = log;
    this.clear();
  }

  clear() {
    this.nodes = new Map();
    this.titles = new Map();
    this.position = -1;
    this.compared = 0;
    this.different = 0;
    this.container.replaceChildren();
  }

  // Shows the events up to that number, which must be loaded.
  show(number) {
    if (number < this.position) this.clear();
    const grown = new Map();
    for (let next = this.position + 1; next <= number; next += 1) this.apply(this.log.events[next], grown);
    this.flush(grown);
    this.position = Math.max(this.position, number);
  }

  apply(event, grown) {
    const item = event.payload?.item;
    if (event.type === "response.output_item.added" && item) {
      this.titles.set(event.output_index ?? event.payload.output_index, [item.type, item.name].filter(Boolean).join(" "));
    }
    const added = deltaOf(event);
    if (added) grown.set(added.part, (grown.get(added.part) ?? "") + added.delta);
    const done = doneText(event);
    if (!done) return;
    this.flush(grown);
    this.compared += 1;
    if ((this.nodes.get(done.part)?.data ?? "") !== done.text) this.different += 1;
  }

  flush(grown) {
    grown.forEach((text, part) => this.nodeOf(part).appendData(text));
    grown.clear();
  }

  nodeOf(part) {
    if (!this.nodes.has(part)) this.nodes.set(part, this.makeNode(part));
    return this.nodes.get(part);
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
