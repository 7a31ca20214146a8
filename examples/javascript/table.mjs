// Has a rolegate gateway fill a table from JavaScript; after `npm install`, `node table.mjs --help` says how.

import { connect, fail, print, taking } from "./gateway.mjs";

const HELP = `Have a rolegate gateway fill a table from JavaScript:

  npm install
  node table.mjs HOST:PORT QUESTION COLUMNS [fill|stream]

COLUMNS are names with commas between them, with a star behind those of keys and a type behind a colon:
"city*, founder, founded:integer".
"fill" (the default) prints each row as one line of JSON: each value with its state and the sentences that say it.
"stream" prints each event as one.
An error is printed as {"code", "message", "reason", "domain", "metadata"}, with exit status 1.
The key, where the gateway wants one, is that of the environment variable ROLEGATE_API_KEY.`;
const [address, question, names, method = "fill"] = process.argv.slice(2);
if (process.argv.includes("--help") || !names || !["fill", "stream"].includes(method)) {
  console.log(HELP);
  process.exit(process.argv.includes("--help") ? 0 : 2);
}
const columns = names.split(",").map((text) => {
  const [name, type = "text"] = text.split(":").map((part) => part.trim());
  return { name: name.replace(/\*$/, ""), key: name.endsWith("*"), type: `COLUMN_TYPE_${type.toUpperCase()}` };
});

function cells(row) {
  const told = row.cells.map(({ value, state, citations }) => ({ value, state, said: citations.map((at) => at.quote) }));
  return Object.fromEntries(columns.map(({ name }, at) => [name, told[at]]));
}

const client = connect(address, "TableService", "table_service");
if (method === "stream") {
  const events = client.StreamTable({ question, columns }, ...taking(600));
  events.on("data", ({ event, event_number, ...fields }) => print({ event_number, event, [event]: fields[event] }));
  events.on("error", fail);
  events.on("status", () => client.close());
} else {
  client.FillTable({ question, columns }, ...taking(600), (error, response) => {
    error ? fail(error) : response.table.rows.forEach((row) => print(cells(row)));
    client.close();
  });
}
