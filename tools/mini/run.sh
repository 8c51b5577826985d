#!/bin/sh
# run.sh DATA_DIR WORK_DIR [PHASE...]: makes the bundled model on one GPU of the H200 class.
# Without a phase all of them in order, about half an hour; none takes more than ten. `draft-2` repeats
# the second half of `draft`.
set -e
here=$(dirname "$0")
data=$1
mkdir -p "$2"
work=$(cd "$2" && pwd)
shift 2
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# what one phase compiled, the next ones find
export TORCHINDUCTOR_CACHE_DIR="${TORCHINDUCTOR_CACHE_DIR:-$work/cache/inductor}"
export TRITON_CACHE_DIR="${TRITON_CACHE_DIR:-$work/cache/triton}"

draft_2() {
    python3 "$here/draft.py" "$data" "$work" --start "$work/draft-1" --seed 78 --own 12288 --seconds 190
}

[ $# -gt 0 ] || set -- compile target draft evaluate golden
for phase in "$@"; do
    echo "== $phase"
    case $phase in
    compile)        # both programs at once; without this phase they compile by themselves, in the time they have
        python3 "$here/train.py" "$data" "$work" --compile --workers 4 &
        target=$!
        python3 "$here/draft.py" "$data" "$work" --compile --workers 4 || { kill $target; exit 1; }
        wait $target
        ;;
    target) python3 "$here/train.py" "$data" "$work" --seconds 563 ;;
    draft)
        rm -rf "$work/draft" "$work/draft-1" "$work/draft.json" "$work/draft-1.json"       # of another target
        python3 "$here/draft.py" "$data" "$work" --out draft-1 --seconds 330
        draft_2
        ;;
    draft-2) draft_2 ;;
    evaluate) python3 "$here/evaluate.py" "$data" "$work/target" "$work/draft" "$work/results.json" ;;
    golden) python3 "$here/golden.py" "$data" "$work/target" "$work/draft" "$work/golden" ;;
    *) echo "run.sh: no such phase: $phase" >&2; exit 2 ;;
    esac
done
