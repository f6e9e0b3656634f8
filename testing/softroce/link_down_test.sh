#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Nobody connects over a link that is down; rxe_heal mends it. And the faults of one test are not there in
# the next: writes_test, which comes after this one, needs the network that is left in pieces here.
#
# That a link going down fails what is under way is for tests that choose their own retry_cnt: these
# programs have 7, which rxe takes for "for ever".
set -euo pipefail
fail() { echo "$*" >&2; exit 1; }

connects() {
  local server line='' said
  exec {server}< <(timeout 20 stdbuf -oL ibv_rc_pingpong -d rxe1 -g 0 2>&1)
  read -r -t 20 line <&"$server" || fail 'the server does not start'
  said=$(timeout 20 ibv_rc_pingpong -d rxe3 -g 0 localhost 2>&1) || { echo "$said"; return 1; }
  exec {server}<&-
}

connects || fail 'no connection over links that are up'

ip link set nd3 down
[ "$(cat /sys/class/infiniband/rxe3/ports/1/state)" = '1: DOWN' ] || fail 'rxe3 is not down'
! connects || fail 'a connection over a link that is down'

ip link set nd3 up
rxe_heal || fail 'rxe_heal does not mend a link'
connects || fail 'no connection over a link that is up again'

ip link set nd3 down
ip -n sw link set p1 down
tc qdisc replace dev nd4 root netem loss 100% limit 10000
tc -n sw qdisc replace dev p2 root netem delay 5ms limit 10000
