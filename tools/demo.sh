#!/usr/bin/env bash
# The main job, after `make build`: with the bundled model, questions and answers; without it, golden model A, whose
# published answer must come out.
set -euo pipefail
cd "$(dirname "$0")/.."
k3=build/release/bin/k3
python=/usr/bin/python3 # the one that Debian's numpy belongs to
[ -x $python ] || python=python3

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
show() {
    local word
    printf '$ k3'
    for word in "$@"; do
        case $word in
        *[!A-Za-z0-9_./,=-]*) printf " '%s'" "$word" ;;
        *) printf ' %s' "$word" ;;
        esac
    done
    printf '\n'
    "$k3" "$@"
}

golden() {
    local dir=build/demo/golden-a
    say "A tiny model whose weights are hashes, so that its answer is known"
    [ -e $dir/model.safetensors ] || $python tools/make_checkpoint.py golden A $dir
    local ids=237,9,264,122,94,30,40,91
    show info -m $dir | sed -n 1,24p
    say "Its logits do not depend on how the work is cut"
    show logits -m $dir --ids $ids --mode f32 -o build/demo/one.f32
    show logits -m $dir --ids $ids --mode f32 --chunk 1 --threads 1 -o build/demo/steps.f32
    cmp build/demo/one.f32 build/demo/steps.f32 && echo "equal, bit by bit"
    say "And its first row is the published one"
    $python - build/demo/one.f32 <<'PY'
import struct, sys
want = [-1.448694, 0.114559, 4.313544, 3.265646]
got = struct.unpack("<4f", open(sys.argv[1], "rb").read(16))
print("published", *want)
print("computed ", *(f"{x:.6f}" for x in got))
sys.exit(any(abs(a - b) > 1e-4 for a, b in zip(want, got)))
PY
}

bundled() {
    local model=models/mini picture=docs/images/shapes.png draft=
    [ ! -e models/mini-dspark/config.json ] ||
        draft='{"method":"dspark","model":"models/mini-dspark","num_speculative_tokens":7}'
    say "The bundled model, a Kimi-K3 small enough to ship"
    show info -m $model | sed -n 1,26p
    say "A question"
    show chat -m $model --temperature 0 --once "What is 17 + 25?" | tee build/demo/answer
    grep -q 42 build/demo/answer
    say "Questions about a picture ($picture)"
    show chat -m $model --temperature 0 --image $picture --once "What is in the picture?"
    show chat -m $model --temperature 0 --image $picture --once "How many red shapes are there?"
    if [ -n "$draft" ]; then
        say "The same with speculation: the text cannot differ"
        show chat -m $model --temperature 0 --image $picture --once "What is in the picture?" --speculative-config "$draft"
    fi
    say "Plain text"
    show run -m $model -p "The package manager" -n 40
    say "Next: $k3 chat -m $model, or $k3 serve $model"
}

mkdir -p build/demo
if [ -e models/mini/config.json ]; then
    bundled
else
    golden
fi
