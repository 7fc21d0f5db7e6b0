// openai-node against a server: `node openai_node.mjs URL MODEL`. Prints what it accumulated, as JSON.
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
const tools = [
  { type: "function", name: "get_weather", parameters: { type: "object", properties: { city: { type: "string" } } } },
];

async function accumulate(body) {
  const stream = client.responses.stream({ model, ...body });
  let deltas = "";
  stream.on("response.output_text.delta", (event) => (deltas += event.delta));
  stream.on("response.function_call_arguments.delta", (event) => (deltas += event.delta));
  const final = await stream.finalResponse();
  const kept = await client.responses.retrieve(final.id);
  return {
    deltas,
    text: final.output_text,
    kept: kept.output_text,
    output: final.output.map((item) => ({ type: item.type, arguments: item.arguments })),
    id: final.id,
  };
}

const said = await accumulate({ input: "Say hello." });
const called = await accumulate({ input: "Oslo and Rome?", tools });
const events = [];
for await (const event of await client.responses.retrieve(said.id, { stream: true, starting_after: 3 })) {
  events.push(event.sequence_number);
}
console.log(JSON.stringify({ said, called, events }));
