// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_verbs/completion_queue.h"

#include <cstring>

namespace waybill::fake_verbs {
namespace {

constexpr int kGarbage = 0xA7;
constexpr ibv_wc_opcode kMisleading = IBV_WC_BIND_MW;  // An enum's garbage has to be one of it.
constexpr uint32_t kVendorError = 0x81;

}  // namespace

ibv_wc BlankCompletion(uint64_t wr_id, uint32_t queue_pair_number) {
  ibv_wc done;
  std::memset(&done, kGarbage, sizeof(done));
  done.opcode = kMisleading;
  done.wr_id = wr_id;
  done.status = IBV_WC_SUCCESS;
  done.vendor_err = 0;
  done.qp_num = queue_pair_number;
  done.wc_flags = 0;
  return done;
}

ibv_wc FailedCompletion(uint64_t wr_id, ibv_wc_status status, uint32_t queue_pair_number) {
  ibv_wc done;
  std::memset(&done, kGarbage, sizeof(done));
  done.opcode = kMisleading;
  done.wr_id = wr_id;
  done.status = status;
  done.vendor_err = kVendorError;
  done.qp_num = queue_pair_number;
  return done;
}

CompletionQueue::CompletionQueue(ibv_context* of, int entries, ibv_comp_channel* with) : ibv_cq{} {
  context = of;
  channel = with;
  cqe = entries;
}

bool CompletionQueue::Push(const Completion& completion) {
  if (dead_) return true;
  if (entries_.size() == static_cast<size_t>(cqe)) {
    Kill();
    return false;
  }
  entries_.push_back(completion);
  if (armed_) Tell();
  return true;
}

void CompletionQueue::Kill() {
  dead_ = true;
  entries_.clear();
}

bool CompletionQueue::Take(uint64_t now, Completion& completion) {
  if (entries_.empty() || entries_.front().visible_at > now) return false;
  completion = entries_.front();
  entries_.pop_front();
  return true;
}

void CompletionQueue::Arm(bool at_once) {
  armed_ = true;
  if (at_once) Tell();
}

void CompletionQueue::Tell() {
  armed_ = false;
  if (channel != nullptr) static_cast<Channel*>(channel)->events.Push(this);
}

bool CompletionQueue::HoldsInvisible(uint64_t now) const {
  return !entries_.empty() && entries_.back().visible_at > now;
}

void CompletionQueue::Remove(uint64_t queue_pair) {
  std::erase_if(entries_, [&](const Completion& c) { return c.queue_pair == queue_pair; });
}

void CompletionQueue::Settle() {
  for (Completion& entry : entries_) entry.visible_at = 0;
}

}  // namespace waybill::fake_verbs
