#!/bin/sh
# Ask a rolegate gateway without generated code. The tools get the RPCs by gRPC reflection.
#
#   ask.sh HOST:PORT QUESTION [Answer|StreamAnswer]
#
# Needs grpcurl or grpc_cli. Prints JSON; StreamAnswer prints one object per event. Errors are printed to the
# standard error stream, and the exit status is not 0. If the gateway needs an API key, set ROLEGATE_API_KEY.
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
