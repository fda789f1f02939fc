#!/usr/bin/env bash
# `cargo mutants` on the access tracker: every mutant against the unit and rule tests.
#
#   scripts/hazard-mutants.sh [FILE...]
#
# FILE is a name below crates/simtile-hazard/src; without one: all of them. It changes the sources in place while it runs, so run it
# in a clone of its own. Results lie in target/hazard-mutants/FILE; what is there already is not run again. Prints a table, and
# each mutant that no test found. Those go to the oracle: scripts/hazard-mutants-oracle.sh. What is left out of the run, and why:
# .cargo/mutants.toml. Which survivors are equivalent, and why: docs/measurements/hazard-2026-12-01.md.
set -uo pipefail
cd "$(dirname "$0")/.."
out=target/hazard-mutants
src=crates/simtile-hazard/src

# Cheap to build matters more than fast to run: the rules take a fifth of a second.
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=1 CARGO_PROFILE_DEV_DEBUG=0
export CARGO_TARGET_DIR=${SIMTILE_MUTANTS_TARGET:-target/mutants}
unset SIMTILE_HAZARD_SEED SIMTILE_HAZARD_OFF

# Those on which safety hangs most come first.
files=("$@")
[ $# -gt 0 ] || files=(
    ranges.rs axis.rs seal.rs permit.rs submit/commit.rs submit/follow.rs submit/admit.rs submit/collect.rs submit/mod.rs plan.rs
    frontier.rs event.rs retire.rs region.rs host.rs stream.rs tracker.rs capture.rs mode.rs ids.rs error.rs stats.rs
    submit/request.rs
)

for file in "${files[@]}"; do
    to=$out/${file//\//-}
    [ -e "$to/done" ] && continue
    rm -rf "$to"
    mkdir -p "$to"
    tests=(--test rules)
    # The only files with unit tests.
    case $file in ranges.rs | mode.rs) tests=(--lib --test rules) ;; esac
    cargo mutants --in-place --package simtile-hazard --file "$src/$file" --output "$to" --baseline skip --timeout 30 \
        --no-times --colors never --cargo-arg=--locked --cargo-arg=--config=profile.dev.package.simtile-hazard.opt-level=0 \
        -- "${tests[@]}" >"$to/log" 2>&1
    # 0: all found; 2: some not; 3: some ran out of time. Anything else is no result.
    case $? in 0 | 2 | 3) touch "$to/done" ;; *) tail -n 5 "$to/log" ;; esac
done

printf '%-20s %6s %6s %10s %6s %6s\n' file all found unviable slow missed
for file in "${files[@]}"; do
    to=$out/${file//\//-}/mutants.out
    count() { wc -l <"$to/$1.txt" 2>/dev/null || echo 0; }
    c=$(count caught) u=$(count unviable) t=$(count timeout) m=$(count missed)
    printf '%-20s %6d %6d %10d %6d %6d\n' "$file" $((c + u + t + m)) "$c" "$u" "$t" "$m"
done
cat $out/*/mutants.out/missed.txt 2>/dev/null
