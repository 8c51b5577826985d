#!/usr/bin/env bash
# Builds nothing: shows what `make build` made.
set -euo pipefail
cd "$(dirname "$0")/.."
ctest --test-dir build/release -R base --output-on-failure
