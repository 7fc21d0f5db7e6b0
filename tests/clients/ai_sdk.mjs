// The AI SDK with both of its Responses providers: `node ai_sdk.mjs URL MODEL`. Prints what was said, as JSON.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenResponses } from "@ai-sdk/open-responses";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const providers = {
  openai: createOpenAI({ baseURL: url, apiKey: "none" }).responses(model),
  open: createOpenResponses({ name: "holdfast", url: `${url}/responses`, apiKey: "none" })(model),
};
const weather = tool({
  description: "Tells the weather.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `Sunny in ${city}, says the oracle.`,
});
const told = {};
for (const [name, provider] of Object.entries(providers)) {
  const settings = { model: provider, maxRetries: 0, tools: { get_weather: weather }, stopWhen: stepCountIs(3) };
  const whole = await generateText({ ...settings, prompt: "Oslo and Rome?" });
  const streamed = streamText({ ...settings, prompt: "Oslo and Rome?" });
  let text = "";
  for await (const part of streamed.textStream) text += part;
  const next = await generateText({
    model: provider,
    maxRetries: 0,
    messages: [
      { role: "user", content: "Oslo and Rome?" },
      ...whole.response.messages,
      { role: "user", content: "Say hello." },
    ],
  });
  told[name] = { whole: whole.text, steps: whole.steps.length, streamed: text, next: next.text };
}
console.log(JSON.stringify(told));
