#!/usr/bin/env bash
# Runs programs that know nothing of simtile on its simulated libcuda.
#
# Each must give the right results. `two_readers_then_writer` shows a fault of cudarc (a slice keeps one event for its
# last reader): its results look right, and the race checker must say that they need not be.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --locked --release -p simtile-libcuda
cargo build --locked --manifest-path interop/cudarc/Cargo.toml --target-dir interop/cudarc/target
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
scripts/libcuda-dir.sh "$folder"

program=interop/cudarc/target/debug/interop-cudarc
passed=0
failed=0

# check NAME TEXT: runs a program; with TEXT, its reports must hold that.
check() {
    local name=$1 text=${2:-} code=0 output
    output=$(LD_LIBRARY_PATH=$folder SIMTILE_SIM=devices=2,check=all timeout 60 "$program" "$name" 2>&1) || code=$?
    if [ "$code" -ne 0 ]; then
        echo "FAIL  $name: exit code $code"
        echo "$output"
    elif [ -n "$text" ] && ! grep -q "$text" <<<"$output"; then
        echo "FAIL  $name: no report with '$text'"
        echo "$output"
    elif [ -z "$text" ] && grep -q '^simtile:' <<<"$output"; then
        echo "FAIL  $name: the checker found something"
        echo "$output"
    else
        echo "pass  $name"
        passed=$((passed + 1))
        return
    fi
    failed=$((failed + 1))
}

check memory
check launch
check events
check two_streams
check graph
check two_devices
check private_tables
check two_readers_then_writer 'nothing orders them'

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
