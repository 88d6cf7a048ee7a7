#!/bin/sh
# Reward: the share of the three words that are right. The file as it was found scores 0.
mkdir -p /logs/verifier
right() {
    if grep -qiw "$1" answer.txt 2> /dev/null && ! grep -qiw "$2" answer.txt; then echo 1; else echo 0; fi
}
receive=$(right receive recieve)
the=$(right the teh)
every=$(right every evry)
awk -v r="$receive" -v t="$the" -v e="$every" 'BEGIN {
    printf "{\"reward\": %.3f, \"receive\": %d, \"the\": %d, \"every\": %d}\n", (r + t + e) / 3, r, t, e
}' > /logs/verifier/reward.json
