// A browser's EventSource on a stored response: `node event_source.mjs URL CUTS`.
// Breaks the first connection after CUTS events; prints, as JSON, how many were opened until it gave up, and each
// event's number and the milliseconds after which it came.
import { EventSource } from "eventsource";

const [url, cuts] = process.argv.slice(2);
const began = Date.now();
const seen = [];
let opened = 0;
const source = new EventSource(url, {
  fetch: async (address, options) => {
    const { status, headers, redirected, url, body } = await fetch(address, options);
    opened += 1;
    return { status, headers, redirected, url, body: opened === 1 ? cut(body) : body };
  },
});

function cut(body) {
  const reader = body.getReader();
  return new ReadableStream({
    async pull(controller) {
      if (seen.length >= Number(cuts)) {
        await reader.cancel();
        return controller.error(new TypeError("network error"));
      }
      const { done, value } = await reader.read();
      return done ? controller.close() : controller.enqueue(value);
    },
  });
}

const KINDS = ["created", "queued", "in_progress", "output_item.added", "content_part.added", "output_text.delta"];
const ENDS = ["output_text.done", "content_part.done", "output_item.done", "incomplete"];
for (const kind of [...KINDS, ...ENDS]) {
  source.addEventListener(`response.${kind}`, (event) => {
    seen.push([JSON.parse(event.data).sequence_number, Date.now() - began]);
  });
}
const finish = () => {
  console.log(JSON.stringify({ opened, seen }));
  process.exit(0);
};
const watch = setInterval(() => source.readyState === EventSource.CLOSED && (clearInterval(watch), finish()), 50);
setTimeout(finish, 60000);
