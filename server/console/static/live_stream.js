// A running response: the server's stream, connected again after every break, each event once and in order.

import { fromStream } from "./event_log.js";

const RETRY_MS = 1500;
const DONE = "[DONE]";

export class LiveStream {
  // `clock` gives the milliseconds since the response was created.
  constructor(log, clock, { onEvent, onEnd, onBreak }) {
    Object.assign(this, { log, clock, onEvent, onEnd, onBreak });
    this.source = null;
    this.connect();
  }

  connect() {
    const last = this.log.events.length - 1;
    const after = last >= 0 ? `?starting_after=${last}` : "";
    this.source = new EventSource(`${this.log.address}/stream${after}`);
    this.source.addEventListener("message", (message) => this.take(message.data));
    this.source.addEventListener("error", () => this.onError());
  }

  take(data) {
    if (data === DONE) {
      this.source.close();
      this.onEnd();
      return;
    }
    const payload = JSON.parse(data);
    if (this.log.append(fromStream(payload, this.clock()))) this.onEvent();
    else if (payload.sequence_number > this.log.events.length) this.connectAgain(0);
  }

  // An EventSource that lost its connection tries again by itself; one that was refused does not.
  onError() {
    this.onBreak();
    if (this.source.readyState === EventSource.CLOSED) this.connectAgain(RETRY_MS);
  }

  connectAgain(milliseconds) {
    this.source.close();
    setTimeout(() => this.connect(), milliseconds);
  }
}
