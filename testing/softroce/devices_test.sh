#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a test finds in the guest: the devices of each node, up, and room to work.
set -euo pipefail
fail() { echo "$*" >&2; exit 1; }

[ "$WAYBILL_RXE_NODES" = 'rxe1,rxe2;rxe3,rxe4' ] || fail "WAYBILL_RXE_NODES is $WAYBILL_RXE_NODES"
for i in 1 2 3 4; do
  port=/sys/class/infiniband/rxe$i/ports/1
  [ "$(cat "$port/state")" = '4: ACTIVE' ] || fail "rxe$i: $(cat "$port/state")"
  [ "$(cat "$port/gid_attrs/ndevs/0")" = "nd$i" ] || fail "rxe$i is on $(cat "$port/gid_attrs/ndevs/0")"
  ip -brief address show dev "nd$i" | grep -q "10\.9\.0\.$i/24" || fail "nd$i has no 10.9.0.$i"
done
[ "$(ls /sys/class/infiniband | wc -l)" = 4 ] || fail "devices: $(ls /sys/class/infiniband)"
ibv_devinfo -d rxe4 | grep -q 'active_mtu:.*4096' || fail "$(ibv_devinfo -d rxe4)"

[ "$(ulimit -l)" = unlimited ] || fail "locked memory: $(ulimit -l) KiB"
echo x >"$TEST_TMPDIR/x"
echo x >/var/tmp/only_in_the_guest
