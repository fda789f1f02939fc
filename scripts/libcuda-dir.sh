#!/usr/bin/env bash
# Lays the simulated libcuda into a folder under both names that programs look for.
#   scripts/libcuda-dir.sh FOLDER [PROFILE]      PROFILE: release (default) or debug
# Then: LD_LIBRARY_PATH=FOLDER SIMTILE_SIM=devices=2 some-cuda-program
set -euo pipefail
folder=${1:?"usage: libcuda-dir.sh FOLDER [PROFILE]"}
profile=${2:-release}
root=$(cd "$(dirname "$0")/.." && pwd)
library=${CARGO_TARGET_DIR:-$root/target}/$profile/libcuda.so
[ -f "$library" ] || { echo "$library is not there: cargo build --release -p simtile-libcuda" >&2; exit 1; }
mkdir -p "$folder"
cp "$library" "$folder/libcuda.so.1"
ln -sf libcuda.so.1 "$folder/libcuda.so"
