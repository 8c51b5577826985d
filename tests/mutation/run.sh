#!/usr/bin/env bash
# Breaks the source one line at a time in a copy and demands that the suite goes red.
#
#   tests/mutation/run.sh [WORD]     only the mutations whose name contains WORD
#
# Each mutation of the lists (*.txt) is applied alone; its tests are rebuilt and at least one must fail. Mutants that
# survive, or no longer apply, are listed at the end and make the exit status 1.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
root=$PWD copy=$PWD/build/mutation/src build=$PWD/build/mutation/build only=${1:-}
export CCACHE_BASEDIR=$copy

rm -rf "$copy"
mkdir -p "$copy"
# Files of now: the last mutant of an earlier run left its object behind.
git ls-files -z --cached --others --exclude-standard | tar --null -T - -cf - | tar -C "$copy" -xmf -
cmake -S "$copy" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DK3_DEPS_DIR="$root/build/deps" >"$build.log" 2>&1 ||
    { tail -5 "$build.log"; exit 1; }

killed=0 survived=()
name='' file='' old='' new='' tests=''

# Replaces `old` in the copy's file; fails unless it occurs exactly once.
apply() {
    OLD=$old NEW=$new perl -0777 -i -pe '
        my $n = () = /\Q$ENV{OLD}\E/g;
        die "\"$ENV{OLD}\" occurs $n times in $ARGV\n" if $n != 1;
        s/\Q$ENV{OLD}\E/$ENV{NEW}/;' "$copy/$file"
}

# The contract needs no more than a few schedules to see a broken engine, and two kinds of model.
run_test() {
    case $1 in
        contract) timeout 600 "$build/bin/test_contract" 60 ;;
        *) timeout 600 "$build/bin/test_$1" ;;
    esac
}

mutate() {
    [ -n "$name" ] || return 0
    if [[ $name == *"$only"* ]]; then
        local verdict="SURVIVED" test targets=()
        for test in $tests; do targets+=("test_$test"); done
        cp "$copy/$file" "$copy/$file.whole"
        if ! apply; then
            verdict="DOES NOT APPLY"
        elif ! cmake --build "$build" -j 2 --target "${targets[@]}" >"$build.log" 2>&1; then
            verdict="DOES NOT BUILD"
            grep -m1 'error:' "$build.log"
        else
            for test in $tests; do
                run_test "$test" >"$build.log" 2>&1 && continue
                verdict="red in $test"
                break
            done
        fi
        printf '%-52s %s\n' "$name" "$verdict"
        case $verdict in red*) killed=$((killed + 1)) ;; *) survived+=("$name: $verdict") ;; esac
        mv "$copy/$file.whole" "$copy/$file"
        touch "$copy/$file" # newer than the object of the mutant
    fi
    name='' file='' old='' new='' tests=''
}

while IFS= read -r line || [ -n "$line" ]; do
    key=${line%% *} value=${line#* }
    value=${value#"${value%%[! ]*}"}
    case $key in
        '') mutate ;;
        name | file | old | new | tests) printf -v "$key" '%s' "$value" ;;
    esac
done < <(for list in "$root"/tests/mutation/*.txt; do cat "$list"; echo; done)
mutate

echo "$killed mutants killed, ${#survived[@]} survived"
for s in ${survived[@]+"${survived[@]}"}; do echo "  $s"; done
[ ${#survived[@]} -eq 0 ]
