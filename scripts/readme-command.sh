#!/usr/bin/env bash
# Prints a command of the README: the code block after the comment `<!-- command: NAME -->`.
# CI runs what this prints, so the README cannot promise a command that nobody tried.
set -euo pipefail
name=${1:?"usage: readme-command.sh NAME"}
readme=$(dirname "$0")/../README.md
command=$(awk -v mark="<!-- command: $name -->" '
    $0 == mark { found = 1; next }
    found && /^```/ { if (inside) exit; inside = 1; next }
    found && inside { print }
' "$readme")
[ -n "$command" ] || { echo "README.md has no command named $name" >&2; exit 1; }
printf '%s\n' "$command"
