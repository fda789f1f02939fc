#!/bin/sh
# Compares what NVIDIA's disassembler says of the committed bytecode before and after a round trip through
# simtile-image. The disassembler comes with CUDA's tileiras package.
#
#     TILEIRDISASM=path/to/tileirdisasm scripts/tile-disassembly.sh [--write]
#
# --write also renews the committed listings, artifacts/*/*.disassembly, which a test compares with our own reading.
set -eu
cd "$(dirname "$0")/.."
tool=${TILEIRDISASM:-tileirdisasm}
command -v "$tool" >/dev/null || { echo "no tileirdisasm: set TILEIRDISASM" >&2; exit 1; }
cargo build -q -p simtile-image --features tile --example rewrite_tile
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
compared=0
for file in artifacts/*/*.tileirbc; do
    "${CARGO_TARGET_DIR:-target}/debug/examples/rewrite_tile" "$file" "$out/again.tileirbc"
    # Once as text alone, once with debug information.
    for flags in "" "-g"; do
        "$tool" $flags "$file" >"$out/before"
        "$tool" $flags "$out/again.tileirbc" >"$out/after"
        [ -s "$out/before" ] || { echo "$file: empty listing" >&2; exit 1; }
        cmp "$out/before" "$out/after" || { echo "$file: another listing after the round trip" >&2; exit 1; }
        [ -n "$flags" ] || [ "${1:-}" != --write ] || cp "$out/before" "${file%.tileirbc}.disassembly"
        compared=$((compared + 1))
    done
done
echo "$compared listings are the same"
