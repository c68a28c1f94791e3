#!/usr/bin/env bash
# A clip with the demo model on 4 CPU ranks: guidance branches on two halves, heads on two ranks of each.
# Usage: examples/make_clip.sh [FOLDER]
set -euo pipefail
folder=${1:-.}

# Plan first: shows the mesh and what every rank will send; needs no weights and no GPU.
hybridgen run --model demo --cfg 2 --ulysses 2 --vae 2 --dry-run

# The path of the video is the one line on stdout.
clip=$(hybridgen run --model demo -p "a blue triangle moves up" --cfg 2 --ulysses 2 --vae 2 --seed 7 \
    --out "$folder/triangle.mp4" --preview "$folder/triangle.png" --overwrite)
echo "made $clip"
