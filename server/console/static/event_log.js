// The events of a response: loaded a page at a time, appended while it runs, and where each one's text belongs.

const TRIES = 5;
const PAUSE_MS = 1000;

function pause(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

export class EventLog {
  constructor(address) {
    this.address = address;
    this.events = []; // an event's place is its sequence number
    this.end = 0; // after the last one that the server has committed
    this.ended = false;
    this.loading = null;
  }

  get isWhole() {
    return this.ended && this.events.length >= this.end;
  }

  // Resolves when the event of that number is there, or there are no more. Raises Error.
  async loadTo(number) {
    let asked = false;
    while (this.events.length <= number && !(asked && this.events.length >= this.end)) {
      this.loading ??= this.loadPage().finally(() => (this.loading = null));
      await this.loading;
      asked = true;
    }
  }

  async loadPage() {
    const first = this.events.length;
    const page = await this.fetchPage(first);
    this.end = Math.max(this.end, page.end);
    this.ended = page.ended;
    page.events.forEach((event) => this.append(event));
  }

  async fetchPage(first) {
    const after = first > 0 ? `?after=${first - 1}` : "";
    for (let left = TRIES; ; left -= 1) {
      try {
        const answer = await fetch(`${this.address}/events.json${after}`, { redirect: "error" });
        if (answer.ok) return await answer.json();
        if (answer.status < 500 && answer.status !== 429) left = 0;
      } catch {
        // the network; a second's pause may help
      }
      if (left <= 1) throw new Error("The events could not be loaded.");
      await pause(PAUSE_MS);
    }
  }

  // Whether it is the next event; others are doubled or come too early, and are left out.
  append(event) {
    if (event.sequence_number !== this.events.length) return false;
    this.events.push(event);
    this.end = Math.max(this.end, this.events.length);
    return true;
  }

  // The same events with the times that are stored, when the response has ended.
  async reload() {
    const whole = new EventLog(this.address);
    await whole.loadTo(Math.max(0, this.events.length - 1));
    if (whole.events.length >= this.events.length) Object.assign(this, whole, { loading: null });
  }
}

// The text that an event adds: its item's part and the delta; null for one that adds none.
export function deltaOf(event) {
  const delta = event.delta ?? event.payload?.delta;
  return typeof delta === "string" ? { part: partOf(event), delta } : null;
}

// The whole text of a part that has ended; null for other events.
export function doneText(event) {
  if (!event.type.endsWith(".done") || !event.payload) return null;
  const { text, arguments: given, input, code } = event.payload;
  const whole = text ?? given ?? input ?? code;
  return typeof whole === "string" ? { part: partOf(event), text: whole } : null;
}

function partOf(event) {
  const { output_index: item, content_index: content, summary_index: summary } = { ...event.payload, ...event };
  return summary === undefined ? `${item ?? 0}-${content ?? 0}` : `${item}-summary-${summary}`;
}

// An event as the API sends it, in the form of events.json.
export function fromStream(payload, milliseconds) {
  const { sequence_number, type, output_index, content_index, delta } = payload;
  return { sequence_number, type, output_index, content_index, delta, ms: milliseconds, payload };
}
