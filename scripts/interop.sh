#!/usr/bin/env bash
# Runs programs that know nothing of simtile on its simulated libcuda, and programs that use cudarc and simtile together.
#
# Each must give the right results. `two_readers_then_writer` shows a fault of cudarc (a slice keeps one event for its
# last reader): its results look right, and the race checker must say that they need not be.
#
# INTEROP_TARGET_DIR says where the programs are built, if not below interop/cudarc.
set -euo pipefail
cd "$(dirname "$0")/.."

cargo build --locked --release -p simtile-libcuda
built=${INTEROP_TARGET_DIR:-interop/cudarc/target}
for program in cudarc together; do
    cargo build --locked --manifest-path "interop/$program/Cargo.toml" --target-dir "$built"
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
scripts/libcuda-dir.sh "$folder"

alone=$built/debug/interop-cudarc
together=$built/debug/interop-together
passed=0
failed=0

# check PROGRAM NAME TEXT: runs a program; with TEXT, its reports must hold that. What knows simtile is told to open the library
# that the loader finds for cudarc.
check() {
    local program=$1 name=$2 text=${3:-} code=0 output
    output=$(LD_LIBRARY_PATH=$folder SIMTILE_DRIVER=$folder/libcuda.so.1 SIMTILE_SIM=devices=2,check=all \
        timeout 60 "$program" "$name" 2>&1) || code=$?
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

check "$alone" memory
check "$alone" launch
check "$alone" events
check "$alone" two_streams
check "$alone" graph
check "$alone" two_devices
check "$alone" private_tables
check "$alone" two_readers_then_writer 'nothing orders them'
for name in their_context_and_stream their_memory our_memory our_stream back_and_forth; do
    check "$together" "$name"
done

echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
