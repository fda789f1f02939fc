#!/usr/bin/env bash
# Compares docs/parity.md, or another table of the same form (docs/driver-facts-tests.md), with the sources: every test
# that it names has to exist, and every group has to have as many rows as its heading says. Prints the rows by state and what is open. Exits with 1 if something is wrong; open rows are
# no error. Builds nothing.
#
#   scripts/parity-gaps.sh [DOCUMENT]
set -euo pipefail
cd "$(dirname "$0")/.."

document=${1:-docs/parity.md}

# index: one line a test, as the document names it, and one line a file of a compile test.
#   core/tests/memory.rs::name      a `#[test]` function below crates/simtile-core
#   core_buffers::name              a test of the conformance suite, from its `tests!` list
#   macros/tests/ui/fail_enum.rs    a file
index() {
    find crates -name '*.rs' -not -path '*/target/*' -print0 | sort -z | xargs -0 awk '
        FNR == 1 {
            short = FILENAME
            sub(/^crates\/(simtile-)?/, "", short)
            print short
            wanted = 0
            family = ""
        }
        /^[ \t]*#\[([a-z_]+::)*test(\(.*\))?\]/ { wanted = 1; next }
        wanted && match($0, /fn [a-z0-9_]+/) {
            print short "::" substr($0, RSTART + 3, RLENGTH - 3)
            wanted = 0
        }
        /^crate::frame::registry::tests! *\{/ && match($0, /"[a-z0-9_]+"/) {
            family = substr($0, RSTART + 1, RLENGTH - 2)
            next
        }
        family != "" && /^\}/ { family = "" }
        family != "" && match($0, /^[ \t]+[a-z0-9_]+/) {
            name = substr($0, RSTART, RLENGTH)
            sub(/^[ \t]+/, "", name)
            print family "::" name
        }
    '
}

index | awk -v document="$document" '
    function trim(text) { sub(/^[ \t]+/, "", text); sub(/[ \t]+$/, "", text); return text }
    function wrong(text) { print "wrong: " document ":" FNR ": " text; errors++ }
    # How many lines a row stands for: 1, or n with "(×n)" at its end.
    function times(line) {
        if (!match(line, /\(×[0-9]+\)$/)) return 1
        line = substr(line, RSTART, RLENGTH)
        gsub(/[^0-9]/, "", line)
        return line + 0
    }
    function group_ends() {
        if (group != "" && rows != expected)
            wrong("group \"" group "\" has " rows " rows, its heading says " expected)
        group = ""
    }
    # Names of tests in a cell: how many exist.
    function resolve(cell,    token, found) {
        found = 0
        while (match(cell, /`[^`]+`/)) {
            token = substr(cell, RSTART + 1, RLENGTH - 2)
            cell = substr(cell, RSTART + RLENGTH)
            if (token !~ /^[a-z0-9_\/-]+(\.rs)?::[a-z0-9_]+$/ && token !~ /^[a-z0-9_\/-]+\.rs$/) continue
            if (token in known) { found++; named[token] = 1 }
            else wrong("no test `" token "`")
        }
        return found
    }

    NR == FNR { known[$0] = 1; next }
    /^## / { group_ends(); section = trim(substr($0, 4)); if (!(section in seen)) { seen[section] = 1; order[++sections] = section } }
    /^### / {
        group_ends()
        group = trim(substr($0, 5))
        rows = 0
        if (match(group, /\([0-9]+\)$/)) {
            expected = substr(group, RSTART + 1, RLENGTH - 2) + 0
            group = trim(substr(group, 1, RSTART - 1))
        } else { wrong("no number of rows in the heading \"" group "\""); expected = 0 }
    }
    /^\|/ && group != "" {
        if (split($0, cell, "|") != 5) { wrong("a row needs three cells"); next }
        line = trim(cell[2]); state = trim(cell[3]); where = trim(cell[4])
        if (line == "line" || line ~ /^-+$/) next
        n = times(line)
        rows += n
        tests = resolve(where)
        if (state == "tested") { if (!tests) wrong("tested, but by no test: " line) }
        else if (state == "reversed") { if (where !~ /^[A-Z]+[0-9]+: ./) wrong("reversed by no promise: " line) }
        else if (state == "no counterpart" || state == "open") { if (where == "") wrong(state " without a reason: " line) }
        else { wrong("unknown state \"" state "\""); next }
        count[section, state] += n
        total[state] += n
        if (state == "open") open[++opens] = section ", " group ": " line " | " where
    }
    END {
        group_ends()
        if (!sections) wrong("no rows")
        print "open:"
        for (i = 1; i <= opens; i++) print "  " open[i]
        print ""
        form = "%-16s %7s %9s %15s %6s %6s\n"
        printf form, "", "tested", "reversed", "no counterpart", "open", "lines"
        for (i = 1; i <= sections; i++) {
            s = order[i]
            t = count[s, "tested"] + 0; r = count[s, "reversed"] + 0
            c = count[s, "no counterpart"] + 0; o = count[s, "open"] + 0
            if (t + r + c + o) printf form, s, t, r, c, o, t + r + c + o
        }
        all = total["tested"] + total["reversed"] + total["no counterpart"] + total["open"]
        printf form, "all", total["tested"] + 0, total["reversed"] + 0, total["no counterpart"] + 0, total["open"] + 0, all
        tests = 0
        for (name in named) tests++
        print tests " tests named, " errors + 0 " errors"
        exit errors > 0
    }
' - "$document"
