#!/usr/bin/env bash
# Rules of the code that a compiler does not check. Usage: check_source.sh [BUILD_DIR]; prints every breach and fails if
# there is one. With a build folder, the exported symbols of libk3.so are checked too.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-}
breaches=0

breach() {
    echo "check_source: $1"
    breaches=$((breaches + 1))
}

# The code without comments, in a folder of its own; strings stay, so a word inside one counts (none does).
code=$(mktemp -d)
trap 'rm -rf "$code"' EXIT
strip_comments() {
    local file
    for file in "$@"; do
        mkdir -p "$code/$(dirname "$file")"
        gcc -fpreprocessed -dD -E -P -w -x c "$file" -o "$code/$file"
    done
}

# grep_code PATTERN WHY FILE...
grep_code() {
    local pattern=$1 why=$2 hit
    shift 2
    while IFS= read -r hit; do
        breach "$why: $hit"
    done < <(cd "$code" && grep -nE "$pattern" "$@" | sed 's/:[0-9]*: */: /')
}

mapfile -t sources < <(find src -name '*.[ch]' -o -name '*.inc' | grep -v unicode_classes | sort)
mapfile -t library < <(printf '%s\n' "${sources[@]}" | grep -vE '^src/(cli|http)/')
mapfile -t no_alloc < <(printf '%s\n' "${sources[@]}" | grep -v '^src/base/alloc.c$')

strip_comments "${sources[@]}"
call() { echo "(^|[^A-Za-z0-9_])($1)[[:space:]]*\\("; }

grep_code "$(call 'strcpy|strcat|sprintf|vsprintf|gets|atoi|atol|atof|strtok|strncpy|strncat')" "banned call" "${sources[@]}"
grep_code "$(call 'malloc|calloc|realloc|aligned_alloc|posix_memalign|alloca|strdup|strndup')" "heap outside k3i_alloc" "${no_alloc[@]}"
grep_code "$(call 'getenv|secure_getenv|setenv|exit|_exit|abort|printf|fprintf|puts|putchar|perror')" \
    "the library does not print, exit or read the environment" "${library[@]}"

# Files stay below 1,000 lines; tables made by a script are exempt.
while read -r lines file; do
    [ "$lines" -le 1000 ] || breach "$file: $lines lines, the limit is 1000"
done < <(find src include tests tools bench plugin docs -regextype posix-extended -regex '.*\.(c|h|inc|py|sh|md|js|css)' 2>/dev/null |
    grep -vE 'unicode_classes|^tests/data/' | xargs wc -l | grep -v ' total$')

# Functions stay below 80 lines (pmccabe: complexity, complexity, statements, first line, lines, file: name).
if command -v pmccabe >/dev/null; then
    while read -r _ _ _ _ lines where; do
        [ "$lines" -le 80 ] || breach "$where: $lines lines, the limit is 80"
    done < <(printf '%s\n' "${sources[@]}" | grep '\.c$' | xargs pmccabe 2>/dev/null)
else
    breach "pmccabe is missing: run tools/setup.sh"
fi

# The public header alone, as C11 and as C++17.
echo '#include <k3/k3.h>' | gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -Iinclude -x c -fsyntax-only - || breach "k3.h is not C11"
echo '#include <k3/k3.h>' | g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -Iinclude -x c++ -fsyntax-only - ||
    breach "k3.h is not C++17"

if [ -n "$build" ] && [ -e "$build/lib/libk3.so" ]; then
    exported=$(nm -D --defined-only "$build/lib/libk3.so" | awk '{print $3}' | sed 's/@.*//' | grep -vE '^(k3_|K3_|_init$|_fini$)' || true)
    [ -z "$exported" ] || breach "libk3.so exports $(echo "$exported" | head -5 | tr '\n' ' ')"
fi

[ $breaches -eq 0 ] && echo "check_source: ${#sources[@]} files keep the rules"
exit $((breaches > 0))
