// @openai/agents against a server: `node agents_node.mjs URL MODEL KEY`. Prints each case's value, by API, as JSON.
import {
  Agent,
  OpenAIConversationsSession,
  OpenAIProvider,
  Runner,
  setTracingDisabled,
  tool,
} from "@openai/agents";
import { z } from "zod";

const [url, name, key] = process.argv.slice(2);
setTracingDisabled(true);
const Weather = z.object({ city: z.string(), degrees: z.number() });

function of(useResponses) {
  const cities = [];
  const getWeather = tool({
    name: "get_weather",
    description: "Tells the weather.",
    parameters: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return `Sunny in ${city}, says the oracle.`;
    },
  });
  const agent = (more = {}, model = name) => new Agent({ name: "Agent", instructions: "Answer.", model, ...more });
  const run = (asked, input, options = {}) => {
    const { apiKey = key, ...rest } = options;
    const modelProvider = new OpenAIProvider({ baseURL: url, apiKey, useResponses });
    return new Runner({ modelProvider }).run(asked, input, rest);
  };
  const status = async (asked, input = "Say hello.", options = {}) => {
    try {
      return `it succeeded: ${(await run(asked, input, options)).finalOutput}`;
    } catch (error) {
      return error.status ?? error.cause?.status ?? String(error);
    }
  };
  const cases = {
    plain: async () => (await run(agent(), "Say hello.")).finalOutput,
    stream: async () => {
      const result = await run(agent(), "Say hello.", { stream: true });
      let text = "";
      for await (const chunk of result.toTextStream()) text += chunk;
      return text;
    },
    turns: async () => {
      const first = await run(agent(), "Say hello.");
      return (await run(agent(), [...first.history, { role: "user", content: "Say hello again." }])).finalOutput;
    },
    tool: async () => {
      const answer = (await run(agent({ tools: [getWeather] }), "Oslo and Rome?")).finalOutput;
      return [answer, cities.sort()];
    },
    structured: async () => (await run(agent({ outputType: Weather }), "Typed weather!")).finalOutput,
    usage: async () => (await run(agent(), "Say hello.")).rawResponses[0].usage.outputTokens > 0,
    "bad key": () => status(agent(), "Say hello.", { apiKey: "wrong" }),
    "unknown model": () => status(agent({}, "nobody")),
    "too long": () => status(agent(), "word ".repeat(60000)),
  };
  return Object.entries(cases);
}

async function tell(cases) {
  const told = {};
  for (const [name, ask] of cases) {
    try {
      told[name] = await ask();
    } catch (error) {
      told[name] = String(error.stack ?? error);
    }
  }
  return told;
}

const conversation = [
  "turns",
  async () => {
    const session = new OpenAIConversationsSession({ baseURL: url, apiKey: key });
    const modelProvider = new OpenAIProvider({ baseURL: url, apiKey: key, useResponses: true });
    const agent = new Agent({ name: "Agent", model: name });
    await new Runner({ modelProvider }).run(agent, "Say hello.", { session });
    return (await new Runner({ modelProvider }).run(agent, "Say hello again.", { session })).finalOutput;
  },
];
console.log(
  JSON.stringify({
    responses: await tell(of(true)),
    chat: await tell(of(false)),
    conversation: await tell([conversation]),
  }),
);
