#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# RDMA writes go from node to node, as packets.
set -euo pipefail
fail() { echo "$*" >&2; exit 1; }

# hw_counter DEVICE NAME
hw_counter() { cat "/sys/class/infiniband/$1/ports/1/hw_counters/$2"; }

write_bw=(stdbuf -oL ib_write_bw -F -x 0 -n 64 -s 65536)
for server in rxe1 rxe2; do
  before=$(hw_counter rxe3 sent_pkts)
  exec {output}< <("${write_bw[@]}" -d $server 2>&1)
  until [[ ${line:=} == *Waiting* ]]; do
    read -r -t 20 line <&"$output" || fail "the server does not start: $line"
  done
  line=''
  "${write_bw[@]}" -d rxe3 localhost
  sent=$(($(hw_counter rxe3 sent_pkts) - before))
  # 64 writes of 16 packets of 4096 bytes; the receiver's CPU may have made rxe repeat some.
  [ $sent -ge 1024 ] || fail "rxe3 to $server: $sent packets"
  exec {output}<&-
done
[ ! -e /var/tmp/only_in_the_guest ] || echo 'one guest for all tests'
