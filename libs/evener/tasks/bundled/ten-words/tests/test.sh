#!/bin/sh
# Reward: 1 for ten words, a tenth less for each word more or fewer, 0 without an answer.
mkdir -p /logs/verifier
words=$(wc -w < answer.txt 2> /dev/null || echo 0)
awk -v words="$words" 'BEGIN {
    off = words > 10 ? words - 10 : 10 - words
    print (off < 10 ? 1 - off / 10 : 0)
}' > /logs/verifier/reward.txt
