// openai-node's Chat Completions and Completions: `node openai_node_chat.mjs URL MODEL`. Prints what came, as JSON.
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });
const parameters = { type: "object", properties: { city: { type: "string" } } };
const weather = ({ city }) => `Sunny in ${city}, says the oracle.`;
const messages = [{ role: "user", content: "Say hello." }];

const whole = await client.chat.completions.create({ model, messages, n: 2, seed: 1, store: true });
const stream = client.chat.completions.stream({ model, messages, seed: 1, stream_options: { include_usage: true } });
let deltas = "";
stream.on("content", (delta) => (deltas += delta));
const streamed = await stream.finalChatCompletion();
const runner = client.chat.completions.runTools({
  model,
  messages: [{ role: "user", content: "Oslo and Rome?" }],
  tools: [{ type: "function", function: { name: "get_weather", parameters, parse: JSON.parse, function: weather } }],
});
const answered = await runner.finalContent();
const kept = await client.chat.completions.retrieve(whole.id);
const given = [];
for await (const message of client.chat.completions.messages.list(whole.id)) given.push(message.content);
const deleted = await client.chat.completions.delete(whole.id);
const text = await client.completions.create({ model, prompt: "Say hello." });
let pieces = "";
for await (const chunk of await client.completions.create({ model, prompt: "Say hello.", stream: true })) {
  pieces += chunk.choices[0]?.text ?? "";
}
console.log(
  JSON.stringify({
    whole: whole.choices.map((choice) => choice.message.content),
    kept: kept.choices.map((choice) => choice.message.content),
    streamed: [streamed.choices[0].message.content, deltas, streamed.usage.completion_tokens > 0],
    answered,
    given,
    deleted: deleted.deleted,
    text: [text.choices[0].text, pieces],
  }),
);
