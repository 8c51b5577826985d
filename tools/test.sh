#!/usr/bin/env bash
# The whole suite. `make test` builds the release first; the other builds are made here. Every stage runs, whatever the
# others did; the last line sums up all of them, and the exit status is 1 if anything failed.
#
#   release   all tests              asan    all tests, with the address and undefined-behaviour sanitizers
#   clang     builds, kernel tests   tsan    the tests that run threads      fuzz    a short run of each fuzz target
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

jobs=$(nproc)
log=build/test-logs
mkdir -p $log
passed=0 failed=0 not_run=0
names=()

fail() {
    failed=$((failed + 1))
    names+=("$1")
}

# stage NAME CTEST_OPTIONS...: configures and builds the preset, then runs ctest in it.
stage() {
    local name=$1 out=$log/$1.log t0=$SECONDS
    shift
    echo "== $name"
    if ! { cmake --preset "$name" && cmake --build "build/$name" -j "$jobs"; } >"$out.build" 2>&1; then
        tail -30 "$out.build"
        fail "$name: build"
        return
    fi
    ctest --test-dir "build/$name" --output-on-failure --no-tests=error -j "$jobs" "$@" >"$out" 2>&1
    # "12/40 Test #7: name .....   Passed    1.02 sec"
    local ok bad skipped
    ok=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#[0-9]+: .* Passed ' "$out")
    skipped=$(grep -cE '^ *[0-9]+/[0-9]+ Test +#[0-9]+: .*\*\*\*Skipped ' "$out")
    bad=0
    while read -r test; do
        fail "$name: $test"
        bad=$((bad + 1))
    done < <(grep -E '^ *[0-9]+/[0-9]+ Test +#[0-9]+: ' "$out" | grep -vE ' Passed |\*\*\*Skipped ' | sed -E 's/.*#[0-9]+: ([^ ]+) .*/\1/')
    [ $((ok + bad + skipped)) -gt 0 ] || fail "$name: no test ran"
    passed=$((passed + ok))
    not_run=$((not_run + skipped))
    [ $bad -eq 0 ] || grep -vE 'Passed +[0-9.]+ sec|^ +Start ' "$out" | head -150
    grep -hE '^NOT RUN' "$out" | sort | uniq -c | sed 's/^ *//' || true
    echo "   $ok passed, $bad failed, $skipped not run, $((SECONDS - t0)) s"
}

tools/setup.sh page || echo "setup: no Chromium here, the page will not be tested"

export UBSAN_OPTIONS=print_stacktrace=1 TSAN_OPTIONS=halt_on_error=1

stage release
stage asan
stage tsan -R '^(base|elastic|golden|contract|dspark_state|ranks|scheduler|serve|http_robust|http_load)$'
stage clang -R '^(base|config|golden|kernels_.*)$'
stage fuzz -R '^fuzz_'

for name in ${names[@]+"${names[@]}"}; do
    echo "FAILED  $name"
done
echo "$((SECONDS / 60)) min $((SECONDS % 60)) s"
echo "$passed passed, $failed failed, $not_run skipped"
[ $failed -eq 0 ]
