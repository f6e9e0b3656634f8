// SPDX-License-Identifier: Apache-2.0

// The engine that sends to one group, with the controller's messages converted to calls.
#ifndef WAYBILL_CORE_CONTROL_GROUP_SENDER_H_
#define WAYBILL_CORE_CONTROL_GROUP_SENDER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/engine/sender_engine.h"
#include "core/fabric/fabric.h"
#include "core/protocol/messages.pb.h"
#include "core/protocol/rank_session.h"

namespace waybill {

class GroupSender {
 public:
  // See SenderEngine::Create().
  GroupSender(Fabric* fabric, StagingArea* area, SenderEngine::EventSink sink)
      : engine_(SenderEngine::Create(fabric, area, std::move(sink))) {}

  SenderEngine& engine() const { return *engine_; }

  // Convert the messages and call the engine's functions of these names. `plan` must have been
  // checked.
  absl::StatusOr<proto::Offers> SetPlan(TermPlan plan, std::vector<MemorySpan> sources);
  absl::Status Connect(const proto::Connect& connect);
  absl::Status SetBufferAddress(uint32_t worker, uint32_t buffer_index,
                                const proto::Buffer& buffer);
  absl::Status Start(const UpdateId& update, const proto::Start& start, NonFiniteRule rule,
                     SourcesAre sources = SourcesAre::kThere,
                     const VersionsInMemory& versions = {});

 private:
  std::unique_ptr<SenderEngine> engine_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_GROUP_SENDER_H_
