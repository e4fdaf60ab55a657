#!/bin/sh
# Let every hospital take part whose public key lies in /enrolment; at a real coordinator a person compares keys first.
set -eu
nodes=
for key in /enrolment/*.pub; do
  site=$(basename "$key" .pub)
  registered=/coordinator/state/$site.pub
  test ! -e "$registered" || continue
  test -n "$nodes" || nodes=$(polyclinic coordinator nodes /coordinator --superlink superlink:8000 --json)
  case $nodes in
    *"\"$site\""*) ;; # registered before a crash that left no copy of the key
    *) polyclinic coordinator register /coordinator "$key" --name "$site" --superlink superlink:8000 ;;
  esac
  install -m 644 "$key" "$registered"
done
