#!/usr/bin/env bash
# The long part of the access tracker's proof. Prints one summary line for each part; ends with an error if one did not pass.
#
#   scripts/hazard-proof.sh [oracle] [cost] [mutate] [loom] [shuttle] [mutants]
#
# Without arguments: all of them but `mutants`, which changes the sources in place (scripts/hazard-mutants.sh). SIMTILE_HAZARD_PROGRAMS (oracle) and SIMTILE_HAZARD_SCHEDULES (shuttle) change how much is
# tried.
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

# proof NAME COMMAND...: runs it, keeps the result for the summary. With `show` set its output is shown in any case.
proof() {
    local name=$1 start=$SECONDS
    shift
    if "$@" >"$log" 2>&1; then
        [ -z "${show:-}" ] || cat "$log"
        summary+=("hazard-proof: $name: passed in $((SECONDS - start)) s")
    else
        summary+=("hazard-proof: $name: FAILED after $((SECONDS - start)) s")
        failed=1
        tail -n 60 "$log"
    fi
    printf '%s\n' "${summary[-1]}"
}

tests=(cargo test --locked -q -p simtile-hazard)
parts=("$@")
[ $# -gt 0 ] || parts=(oracle cost mutate loom shuttle)
for part in "${parts[@]}"; do
    case $part in
    oracle)
        show=1 proof "$programs random programs, every rule fired" \
            env SIMTILE_HAZARD_PROGRAMS="$programs" "${tests[@]}" --release --test oracle -- --nocapture
        ;;
    cost) proof "cost gate" "${tests[@]}" --features count --test cost ;;
    mutate)
        # The tests that it runs are built with optimisation all the same.
        proof "mutation check, with its lint" cargo run --locked -q -p xtask -- mutate-hazard
        ;;
    # Other cfgs change every crate: target directories of their own keep the builds apart.
    loom)
        proof "loom" env RUSTFLAGS="$flags --cfg loom" CARGO_TARGET_DIR="$target/loom" \
            "${tests[@]}" --release --test loom
        proof "loom: the hand-off of a completion" \
            env RUSTFLAGS="$flags --cfg loom" CARGO_TARGET_DIR="$target/loom" \
            cargo test --locked -q -p simtile-sync --release --test loom
        ;;
    shuttle)
        proof "shuttle, $schedules schedules of two kinds" \
            env RUSTFLAGS="$flags --cfg shuttle" CARGO_TARGET_DIR="$target/shuttle" \
            SIMTILE_HAZARD_SCHEDULES="$schedules" "${tests[@]}" --release --test shuttle
        ;;
    mutants) show=1 proof "cargo mutants" scripts/hazard-mutants.sh ;;
    *)
        echo "unknown part: $part" >&2
        exit 2
        ;;
    esac
done

printf '\n'
printf '%s\n' "${summary[@]}"
exit "$failed"
