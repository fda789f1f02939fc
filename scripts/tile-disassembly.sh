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
rewrite="${CARGO_TARGET_DIR:-target}/debug/examples/rewrite_tile"
compared=0
for file in artifacts/*/*.tileirbc; do
    # At an older version the layout differs and the meaning does not; the wide kernel needs 13.4.
    case $file in
    *tile_wide*) ;;
    *)
        "$tool" "$file" >"$out/before"
        for version in 13.2 13.3 13.4; do
            "$rewrite" "$file" "$out/older.tileirbc" $version
            "$rewrite" "$out/older.tileirbc" "$out/again.tileirbc"
            cmp "$out/older.tileirbc" "$out/again.tileirbc"
            "$tool" "$out/again.tileirbc" >"$out/after"
            cmp "$out/before" "$out/after" || { echo "$file: another listing at $version" >&2; exit 1; }
            compared=$((compared + 1))
        done
        ;;
    esac
    "$rewrite" "$file" "$out/again.tileirbc"
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
