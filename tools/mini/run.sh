#!/bin/sh
# Trains, drafts, evaluates and writes golden vectors: run.sh DATA_DIR WORK_DIR
# Needs one GPU of the H200 class, about twenty minutes; every phase fits ten minutes.
set -e
here=$(dirname "$0")
export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
python3 "$here/train.py" "$1" "$2" --seconds 568
cp "$2/train.json" "$2/train-1.json"
python3 "$here/train.py" "$1" "$2" --resume --leg 2 --seconds 138 --peak 0.5 --decay 0.9
python3 "$here/draft.py" "$1" "$2" --seconds 205
python3 "$here/evaluate.py" "$1" "$2/target" "$2/draft" "$2/results.json"
python3 "$here/golden.py" "$1" "$2/target" "$2/draft" "$2/golden"
