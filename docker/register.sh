#!/bin/sh
# Let every hospital take part whose public key lies in /enrolment; at a real coordinator a person compares keys first.
set -eu
known=$(polyclinic coordinator nodes /coordinator --superlink superlink:8000 --json)
for key in /enrolment/*.pub; do
  site=$(basename "$key" .pub)
  case $known in *"\"$site\""*) continue ;; esac
  polyclinic coordinator register /coordinator "$key" --name "$site" --superlink superlink:8000
done
