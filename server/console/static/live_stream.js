// A running response: the server's stream, connected again after every break, each event once and in order.

import { fromStream } from "./event_log.js";

const RETRY_MS = 1500;
const DONE = "[DONE]";

// Whether the server refuses to go on after that event, which it does not have any more.
export async function isForked(address, lastId) {
  const abort = new AbortController();
  try {
    const headers = lastId ? { "last-event-id": lastId } : {};
    return (await fetch(address, { headers, redirect: "error", signal: abort.signal })).status === 400;
  } catch {
    return false; // the network; the stream is tried again
  } finally {
    abort.abort();
  }
}

export class LiveStream {
  // `clock` gives the milliseconds since the response was created.
  // `onFork` is called when the database has lost events that are shown; nothing is called after it.
  constructor(log, clock, { onEvent, onEnd, onBreak, onFork }) {
    Object.assign(this, { log, clock, onEvent, onEnd, onBreak, onFork });
    this.source = null;
    this.lastId = null;
    this.connect();
  }

  connect() {
    const last = this.log.events.length - 1;
    const after = last >= 0 ? `?starting_after=${this.lastId ?? last}` : "";
    this.address = `${this.log.address}/stream${after}`;
    this.source = new EventSource(this.address);
    this.source.addEventListener("message", (message) => this.take(message));
    this.source.addEventListener("error", () => this.onError());
  }

  take({ data, lastEventId }) {
    if (data === DONE) {
      this.source.close();
      this.onEnd();
      return;
    }
    const payload = JSON.parse(data);
    if (payload.type === "error") {
      this.source.close();
      this.onFork();
    } else if (this.log.append(fromStream(payload, this.clock()))) {
      this.lastId = lastEventId;
      this.onEvent();
    } else if (payload.sequence_number > this.log.events.length) {
      this.connectAgain();
    }
  }

  // An EventSource that lost its connection tries again by itself; one that was refused does not.
  async onError() {
    this.onBreak();
    if (this.source.readyState !== EventSource.CLOSED) return;
    if (await isForked(this.address, this.lastId)) this.onFork();
    else this.connectAgain();
  }

  // After a pause: a log in which an event is missing sends the next one again at once.
  connectAgain() {
    this.source.close();
    setTimeout(() => this.connect(), RETRY_MS);
  }
}
