#!/bin/sh
# Write deploy/requirements.lock: versions and hashes of all packages that the image installs, for each
# supported platform and Python version. Needs uv (pip install uv). Arguments, such as --upgrade, are passed to uv.
set -eu
cd "$(dirname "$0")/.."
uv pip compile pyproject.toml --extra hosted --extra postgres --extra otlp --extra mcp \
    --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate \
    --custom-compile-command "sh scripts/lock.sh" --output-file deploy/requirements.lock "$@" >/dev/null
