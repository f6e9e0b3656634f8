// SPDX-License-Identifier: Apache-2.0

#include <utility>

#include "core/simulate/ranks.h"

namespace waybill::simulate {

void Carry(World& world, Threads& progress, Transfer transfer,
           std::function<void(double seconds)> posted, std::function<void()> landed) {
  const Network& network = world.hardware.network;
  const double post = static_cast<double>(transfer.writes) * network.post;
  if (world.carrier() == Carrier::kMapped) {
    return world.time.After(network.latency, std::move(landed));
  }
  if (world.carrier() == Carrier::kTcp) {
    const double send = static_cast<double>(transfer.bytes) / network.tcp_send + post;
    const double receive = static_cast<double>(transfer.bytes) / network.tcp_receive + post;
    return progress.Run(send, [&world, send, receive, worker = transfer.worker,
                               posted = std::move(posted), landed = std::move(landed)] {
      posted(send);
      world.receivers[worker]->progress().Run(receive, landed);
    });
  }
  progress.Run(post, [&world, post, transfer = std::move(transfer), posted = std::move(posted),
                      landed = std::move(landed)]() mutable {
    posted(post);
    world.fabrics.Send(transfer.lane, {transfer.bytes, transfer.writes, std::move(transfer.path),
                                       std::move(landed)});
  });
}

}  // namespace waybill::simulate
