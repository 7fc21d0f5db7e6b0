// Follows the server-sent events of a response over lost connections: each event once, in order, to the end.

const RETRY_MS = 1000;
const ENDS = new Set(["response.completed", "response.failed", "response.incomplete", "response.cancelled", "error"]);

// Yields the events with a sequence number above `after` (-1: all of them). Ends after the last one, or
// when `signal` aborts. Throws for an address that answers with a client's error.
export async function* follow(path, after = -1, signal = undefined) {
  let last = after;
  while (!signal?.aborted) {
    try {
      const answer = await fetch(last < 0 ? path : `${path}?starting_after=${last}`, { signal });
      if (answer.status >= 400 && answer.status < 500 && answer.status !== 429) {
        throw new RangeError(`${answer.status}`);
      }
      if (answer.ok) {
        for await (const event of read(answer.body)) {
          if (event.sequence_number <= last) continue;
          last = event.sequence_number;
          yield event;
          if (ENDS.has(event.type)) return;
        }
      }
    } catch (error) {
      if (error instanceof RangeError) throw error;
    }
    if (!signal?.aborted) await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

// The JSON of each `data:` line of a body. What a cut connection leaves of a line is dropped.
async function* read(body) {
  let rest = "";
  for await (const piece of body.pipeThrough(new TextDecoderStream())) {
    const lines = (rest + piece).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
    }
  }
}
