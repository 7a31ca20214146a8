#!/bin/sh
# Asks a rolegate gateway without generated code: reflection tells what there is to call.
#
#   ask.sh HOST:PORT QUESTION [Answer|StreamAnswer]
#
# Needs grpcurl or, in its place, grpc_cli. Prints JSON, one object an event for StreamAnswer. An error goes to the
# standard error stream, with an exit status other than 0. The key, where the gateway wants one, is that of the
# environment variable ROLEGATE_API_KEY.
set -eu
if [ "${1:-}" = --help ] || [ $# -lt 2 ]; then
  sed -n '2,/^set/s/^# \{0,1\}//p' "$0"
  [ "${1:-}" = --help ] && exit 0 || exit 2
fi
address=$1
method=rolegate.v1.AnswerService/${3:-Answer}
request=$(printf '{"question": "%s"}' "$(printf %s "$2" | sed 's/[\\"]/\\&/g')")
if command -v grpcurl >/dev/null; then
  exec grpcurl -plaintext -max-time 120 ${ROLEGATE_API_KEY:+-H "authorization: Bearer $ROLEGATE_API_KEY"} \
    -d "$request" "$address" "$method"
else
  exec grpc_cli call --json_input --json_output --timeout=120 \
    ${ROLEGATE_API_KEY:+--metadata="authorization:Bearer $ROLEGATE_API_KEY"} "$address" "$method" "$request"
fi
