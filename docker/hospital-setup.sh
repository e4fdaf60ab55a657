#!/bin/sh
# A demo hospital's folder, once: its database's password, its key and policy; its public key goes to the coordinator.
set -eu
site=$1
test -s /secret/password || head -c 32 /dev/urandom | base64 | tr '+/' '-_' > /secret/password
test -e /hospital/hospital.toml ||
  polyclinic hospital init /hospital --site "$site" --data "postgresql://hospital@db-$site/hospital" \
    --source "query=select * from patients" --source password-file=/secret/password --schema /opt/polyclinic/schema.toml \
    --coordinator superlink:8000 --ca /public/ca.crt --budget "$BUDGET" --delta "$DELTA" --no-check
install -m 644 /hospital/node.pub "/enrolment/$site.pub"
