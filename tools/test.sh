#!/usr/bin/env bash
# The whole suite, after `make build`. Closes with ctest's summary of the release build.
set -euo pipefail
cd "$(dirname "$0")/.."
ctest --test-dir build/release --output-on-failure -j2
