// SPDX-License-Identifier: Apache-2.0

// The messages of a job's updates over gRPC streams with TLS, without a controller and without
// ranks: what many_groups.cc is compared with.
#ifndef WAYBILL_TESTING_BENCH_BARE_STREAMS_H_
#define WAYBILL_TESTING_BENCH_BARE_STREAMS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace waybill {

// Not thread-safe.
class BareStreams {
 public:
  // Opens a server and a stream for each trainer and for each group's only worker, all in this
  // process. kUnavailable: they cannot connect.
  static absl::StatusOr<std::unique_ptr<BareStreams>> Open(uint32_t trainers, uint32_t groups);
  virtual ~BareStreams() = default;

  // Exchanges the messages of an update in which each group commits: as many as a controller and
  // its ranks exchange, in the same order and of the same kinds. Returns how long it took, or
  // kDeadlineExceeded after 20 s.
  virtual absl::StatusOr<absl::Duration> Update(uint64_t version) = 0;
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_BENCH_BARE_STREAMS_H_
