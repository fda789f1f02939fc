#!/usr/bin/env bash
# `cargo mutants` on the access tracker: every mutant against the unit and rule tests, then what they did not find against the
# oracle's random programs.
#
#   scripts/hazard-mutants.sh [FILE...]
#
# FILE is a name below crates/simtile-hazard/src; without one: all of them (about an hour of two quiet cores). It changes the sources
# in place while it runs, so run it in a clone of its own. Results lie in target/hazard-mutants/FILE; what is there already is not run
# again. Prints a table and each mutant that nothing found. What is left out of the run, and why: .cargo/mutants.toml. Which
# survivors are equivalent, and why: docs/measurements/hazard-2026-12-01.md. Ends with an error if a run did.
set -uo pipefail
cd "$(dirname "$0")/.."
out=target/hazard-mutants
src=crates/simtile-hazard/src

# Cheap to build matters more than fast to run: the rules take a fifth of a second.
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=0 CARGO_TARGET_DIR=target/mutants
unset SIMTILE_HAZARD_SEED SIMTILE_HAZARD_OFF
export SIMTILE_HAZARD_PROGRAMS=2000

# Those on which safety hangs most come first.
files=("$@")
[ $# -gt 0 ] || files=(
    ranges.rs axis.rs seal.rs permit.rs submit/commit.rs submit/follow.rs submit/admit.rs submit/collect.rs submit/mod.rs plan.rs
    frontier.rs event.rs retire.rs region.rs host.rs stream.rs tracker.rs capture.rs mode.rs ids.rs error.rs stats.rs
    submit/request.rs
)
failed=0

# mutants FILE OPT-LEVEL ARGUMENT...: one run, with these arguments for cargo test.
mutants() {
    local file=$1 level=$2 to=$out/${1//\//-}
    shift 2
    cargo mutants --in-place --iterate --package simtile-hazard --file "$src/$file" --output "$to" --baseline skip --timeout 60 \
        --no-times --colors never --cargo-arg=--locked \
        --cargo-arg="--config=profile.dev.package.simtile-hazard.opt-level=$level" "${@/#/--cargo-arg=}" >>"$to/log" 2>&1
    # 0: all found; 2: some not; 3: some ran out of time. Anything else is no result.
    case $? in 0 | 2 | 3) return 0 ;; *) tail -n 5 "$to/log" && return 1 ;; esac
}

for file in "${files[@]}"; do
    to=$out/${file//\//-}
    [ -e "$to/done" ] && continue
    rm -rf "$to"
    mkdir -p "$to"
    tests=(--test=rules)
    # The files with unit tests.
    case $file in ranges.rs | mode.rs | frontier.rs | permit.rs) tests+=(--lib) ;; esac
    if mutants "$file" 0 "${tests[@]}" && cp -r "$to/mutants.out" "$to/rules.out" && mutants "$file" 1 --test=oracle; then
        touch "$to/done"
    else
        failed=1
    fi
done

printf '%-20s %6s %9s %12s %6s\n' file found unviable 'out of time' missed
for file in "${files[@]}"; do
    to=$out/${file//\//-}
    count() { cat "$to/rules.out/$1.txt" "$to/mutants.out/$1.txt" 2>/dev/null | sort -u | grep -c .; }
    printf '%-20s %6d %9d %12d %6d\n' "$file" "$(count caught)" "$(count unviable)" "$(count timeout)" \
        "$(grep -c . "$to/mutants.out/missed.txt" 2>/dev/null)"
done
cat $out/*/mutants.out/missed.txt 2>/dev/null
exit "$failed"
