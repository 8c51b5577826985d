#!/usr/bin/env bash
# What a draft is worth on this machine: decode speed with the bundled draft against plain decoding, by users and by width, and
# the cost of a draft that is never right. Each figure is the median ratio of rounds in which both take turns.
#
#   bench/speculation.sh [OUT_DIR]      writes OUT_DIR/speculation.{tsv,svg} (default build/bench); needs `make build`, gnuplot
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-build/bench}
k3=build/release/bin/k3
python=/usr/bin/python3
mkdir -p "$out"
noise=$out/noise
[ -e "$noise/draft/config.json" ] ||
    $python tools/make_checkpoint.py random "$noise/target" --draft "$noise/draft" --hidden 384 --layers 9 \
        --mla-layers 4,8,9 --vocab 3072 >/dev/null

# measure DRAFT USERS JSON_TAIL: prints "plain spec speedup min max acceptance"
measure() {
    $k3 bench -m models/mini --json --prefill 64 --decode 8 --rounds 5 --threads 2 --users "$2" \
        --prompts bench/prompts/mini.jsonl \
        --speculative-config "{\"method\":\"dspark\",\"model\":\"$1\"$3}" |
        $python -c 'import json,sys; s=json.load(sys.stdin)["speculation"]
print(*(f"{s[k]:.4g}" for k in ("plain_tokens_per_s","spec_tokens_per_s","speedup","speedup_min","speedup_max","mean_acceptance_length")), sep="\t")'
}

{
    printf 'draft\tusers\twidth\tplain_tok_s\tspec_tok_s\tspeedup\tmin\tmax\tacceptance\n'
    for users in 1 2 4 8; do
        for width in 1 3 5 7 11 15; do
            printf 'mini\t%s\t%s\t%s\n' $users $width \
                "$(measure models/mini-dspark $users ",\"num_speculative_tokens\":$width,\"adaptive\":false")"
        done
        printf 'mini\t%s\tadaptive\t%s\n' $users "$(measure models/mini-dspark $users ',"num_speculative_tokens":7')"
        printf 'noise\t%s\tadaptive\t%s\n' $users "$(measure "$noise/draft" $users ',"num_speculative_tokens":7')"
    done
} | tee "$out/speculation.tsv"

gnuplot <<PLOT
set terminal svg size 720,420 font "sans,13" background "white"
set output "$out/speculation.svg"
set xlabel "drafts verified per step (fixed width)"
set ylabel "decode speed / plain decode speed"
set grid ytics lc rgb "#dddddd"
set yrange [0:*]
set key top left
plot 1 with lines lc rgb "#999999" dt 2 title "plain", \
     for [u in "1 2 4 8"] "< awk -F'\t' '\$1==\"mini\" && \$2==".u." && \$3!=\"adaptive\"' $out/speculation.tsv" \
         using 3:6 with linespoints pt 7 ps 0.6 title u." user".(u eq "1" ? "" : "s")
PLOT
