// Asks a rolegate gateway from JavaScript; `node ask.mjs --help` says how.

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import protobuf from "protobufjs";
import { fileURLToPath } from "node:url";

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
const definition = protoLoader.loadSync("rolegate/v1/answer_service.proto", {
  includeDirs: [fileURLToPath(new URL("../../protos", import.meta.url))],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true,
});
const { AnswerService } = grpc.loadPackageDefinition(definition).rolegate.v1;

// google.rpc.Status and google.rpc.ErrorInfo, as the trailer grpc-status-details-bin carries them.
const google = protobuf.parse(
  `
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
`,
  { keepCase: true },
).root;

function print(value) {
  console.log(JSON.stringify(value));
}

function fail(error) {
  const [trailer] = error.metadata.get("grpc-status-details-bin");
  const status = trailer && google.lookupType("Status").decode(trailer);
  const packed = status?.details.find((detail) => detail.type_url.endsWith("/google.rpc.ErrorInfo"));
  const info = packed && google.lookupType("ErrorInfo").decode(packed.value);
  const { reason, domain, metadata } = info ?? {};
  print({ code: grpc.status[error.code], message: error.details, reason, domain, metadata });
  process.exitCode = 1;
}

const client = new AnswerService(address, grpc.credentials.createInsecure());
const deadline = new Date(Date.now() + 120_000);
const metadata = new grpc.Metadata();
const key = process.env.ROLEGATE_API_KEY;
if (key) metadata.set("authorization", `Bearer ${key}`);
if (method === "stream") {
  const events = client.StreamAnswer({ question }, metadata, { deadline });
  events.on("data", ({ event, event_number, ...fields }) => print({ event_number, event, [event]: fields[event] }));
  events.on("error", fail);
  events.on("status", () => client.close());
} else {
  client.Answer({ question }, metadata, { deadline }, (error, response) => {
    error ? fail(error) : print(response);
    client.close();
  });
}
