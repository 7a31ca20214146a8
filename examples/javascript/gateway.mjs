// A gateway's services for the examples beside this file: clients, what each call takes along, and errors as JSON.

import grpc from "@grpc/grpc-js";
import protoLoader from "@grpc/proto-loader";
import protobuf from "protobufjs";
import { fileURLToPath } from "node:url";

const OPTIONS = {
  includeDirs: [fileURLToPath(new URL("../../protos", import.meta.url))],
  keepCase: true,
  longs: Number,
  enums: String,
  defaults: true,
  oneofs: true,
};

// A client of one service of rolegate.v1, whose file is named.
export function connect(address, service, file) {
  const definition = protoLoader.loadSync(`rolegate/v1/${file}.proto`, OPTIONS);
  const Client = grpc.loadPackageDefinition(definition).rolegate.v1[service];
  return new Client(address, grpc.credentials.createInsecure());
}

// The metadata and the options of a call that may take so many seconds.
export function taking(seconds) {
  const metadata = new grpc.Metadata();
  const key = process.env.ROLEGATE_API_KEY;
  if (key) metadata.set("authorization", `Bearer ${key}`);
  return [metadata, { deadline: new Date(Date.now() + 1000 * seconds) }];
}

export function print(value) {
  console.log(JSON.stringify(value));
}

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

// Prints an error, and ends the program with exit status 1.
export function fail(error) {
  const [trailer] = error.metadata.get("grpc-status-details-bin");
  const status = trailer && google.lookupType("Status").decode(trailer);
  const packed = status?.details.find((detail) => detail.type_url.endsWith("/google.rpc.ErrorInfo"));
  const info = packed && google.lookupType("ErrorInfo").decode(packed.value);
  const { reason, domain, metadata } = info ?? {};
  print({ code: grpc.status[error.code], message: error.details, reason, domain, metadata });
  process.exitCode = 1;
}
