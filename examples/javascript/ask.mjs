// Asks a rolegate gateway from JavaScript; after `npm install`, `node ask.mjs --help` says how.

import { connect, fail, print, taking } from "./gateway.mjs";

const HELP = `Ask a rolegate gateway from JavaScript:

  npm install
  node ask.mjs HOST:PORT QUESTION [answer|stream]

"answer" (the default) prints the response as one line of JSON, "stream" prints each event as one.
An error is printed as {"code", "message", "reason", "domain", "metadata"}, with exit status 1.
The key, where the gateway wants one, is that of the environment variable ROLEGATE_API_KEY.`;
const [address, question, method = "answer"] = process.argv.slice(2);
if (process.argv.includes("--help") || !question || !["answer", "stream"].includes(method)) {
  console.log(HELP);
  process.exit(process.argv.includes("--help") ? 0 : 2);
}
const client = connect(address, "AnswerService", "answer_service");
if (method === "stream") {
  const events = client.StreamAnswer({ question }, ...taking(120));
  events.on("data", ({ event, event_number, ...fields }) => print({ event_number, event, [event]: fields[event] }));
  events.on("error", fail);
  events.on("status", () => client.close());
} else {
  client.Answer({ question }, ...taking(120), (error, response) => {
    error ? fail(error) : print(response);
    client.close();
  });
}
