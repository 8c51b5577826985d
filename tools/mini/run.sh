#!/bin/sh
# run.sh DATA_DIR WORK_DIR [PHASE...]: makes the bundled model on one GPU of the H200 class.
# Without a phase all of them in order, about twenty-five minutes; none takes more than ten.
set -e
here=$(dirname "$0")
data=$1 work=$2
shift 2
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
for phase in ${@:-target draft evaluate golden}; do
    echo "== $phase"
    case $phase in
    target) python3 "$here/train.py" "$data" "$work" --seconds 565 ;;
    draft)      # twice: what the first run compiles, the second finds in the cache
        python3 "$here/draft.py" "$data" "$work" --seconds 240
        rm -rf "$work/draft-1"
        mv "$work/draft" "$work/draft-1"
        mv "$work/draft.json" "$work/draft-1.json"
        python3 "$here/draft.py" "$data" "$work" --start "$work/draft-1" --seed 78 --own 8192 --seconds 146
        ;;
    evaluate) python3 "$here/evaluate.py" "$data" "$work/target" "$work/draft" "$work/results.json" ;;
    golden) python3 "$here/golden.py" "$data" "$work/target" "$work/draft" "$work/golden" ;;
    *) echo "run.sh: no such phase: $phase" >&2; exit 2 ;;
    esac
done
