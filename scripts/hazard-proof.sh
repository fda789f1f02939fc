#!/usr/bin/env bash
# The long part of the access tracker's proof: random programs, cost gate, lint of the mutation check, models.
# Prints one summary line for each; ends with an error if one of them did not pass.
# SIMTILE_HAZARD_PROGRAMS and SIMTILE_HAZARD_SCHEDULES change how much is tried.
set -uo pipefail
cd "$(dirname "$0")/.."

export CARGO_TERM_COLOR=never
# Not the programs of a replay, and no mutation.
unset SIMTILE_HAZARD_SEED SIMTILE_HAZARD_OFF LOOM_MAX_PREEMPTIONS SHUTTLE_RANDOM_SEED
programs=${SIMTILE_HAZARD_PROGRAMS:-100000}
schedules=${SIMTILE_HAZARD_SCHEDULES:-1000}
target=${CARGO_TARGET_DIR:-target}
flags=${RUSTFLAGS:-}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
summary=()
failed=0

# proof NAME COMMAND...: runs it, keeps the result for the summary.
proof() {
    local name=$1 start=$SECONDS
    shift
    if "$@" >"$log" 2>&1; then
        summary+=("hazard-proof: $name: passed in $((SECONDS - start)) s")
    else
        summary+=("hazard-proof: $name: FAILED after $((SECONDS - start)) s")
        failed=1
        tail -n 60 "$log"
    fi
    printf '%s\n' "${summary[-1]}"
}

tests=(cargo test --locked -q -p simtile-hazard)
proof "$programs random programs, every rule fired" \
    env SIMTILE_HAZARD_PROGRAMS="$programs" "${tests[@]}" --release --test oracle
proof "cost gate" "${tests[@]}" --features count --test cost
proof "lint of the mutation check" cargo run --locked -q -p xtask -- mutate-hazard --lint
# Other cfgs change every crate: target directories of their own keep the builds apart.
proof "loom" env RUSTFLAGS="$flags --cfg loom" CARGO_TARGET_DIR="$target/loom" \
    "${tests[@]}" --release --test loom
proof "shuttle, $schedules schedules of two kinds" \
    env RUSTFLAGS="$flags --cfg shuttle" CARGO_TARGET_DIR="$target/shuttle" SIMTILE_HAZARD_SCHEDULES="$schedules" \
    "${tests[@]}" --release --test shuttle

printf '\n'
printf '%s\n' "${summary[@]}"
exit "$failed"
