#!/bin/sh
# Copies the committed images into the corpora of the fuzz targets. Run it once before fuzzing:
#
#     scripts/fuzz-corpus.sh
#     RUSTC_BOOTSTRAP=1 cargo fuzz run TARGET -- -max_total_time=600
#
# RUSTC_BOOTSTRAP lets a stable compiler take the flags for coverage that cargo-fuzz passes.
set -eu
cd "$(dirname "$0")/.."
copy() {
    target=$1
    shift
    mkdir -p "fuzz/corpus/$target"
    for file in "$@"; do
        # Named by path: folders have files of the same name.
        cp "$file" "fuzz/corpus/$target/seed-$(echo "${file#artifacts/}" | tr / -)"
    done
    echo "$target: $(ls "fuzz/corpus/$target" | grep -c '^seed-') seeds"
}
copy ptx_parse artifacts/ptx/*.ptx artifacts/cubin/*.ptx
copy elf artifacts/*/*.cubin
copy fatbin artifacts/fatbin/*.fatbin
copy tile_read artifacts/*/*.tileirbc
copy ptx_run artifacts/ptx/*.ptx artifacts/cubin/*.ptx
copy tile_run artifacts/*/*.tileirbc
copy check artifacts/ptx/*.ptx artifacts/*/*.cubin artifacts/fatbin/*.fatbin artifacts/*/*.tileirbc
