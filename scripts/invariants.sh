#!/usr/bin/env bash
# How many invariants each crate has (`invariant!`, `less!`, `broken`, `said`), for 1,000 lines of code without tests, comments and
# blank lines.
set -euo pipefail
cd "$(dirname "$0")/.."

for crate in format vdev objects store dmu dsl pool engine inspect zpl; do
    find "crates/$crate/src" -name '*.rs' | grep -vE 'tests?\.rs$|/tests/|planted|testing\.rs$' | sort | xargs awk -v crate="$crate" '
        FNR == 1 { tests = marked = 0 }
        marked && /^mod tests \{/ { tests = 1 }
        /^#\[cfg\(test\)\]/ { marked = 1 }
        tests || /^[ \t]*$/ || /^[ \t]*\/\// { next }
        { lines++ }
        /^[ \t]*use / || /fn (broken|said)/ || /macro_rules!/ { next }
        { all += gsub(/(invariant|less)! ?\(|broken\(format_args|said\((format_args|why)/, "") }
        END { printf "%-8s %6d lines, %3d invariants: %.1f\n", crate, lines, all, all * 1000 / lines }'
done
