// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/verbs/read_back.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"

namespace waybill::verbs {
namespace {

absl::Status NoRoom(absl::string_view call, const Device& device) {
  return absl::ResourceExhaustedError(
      absl::StrCat(call, " of ", device.name(), " for reading back: ", std::strerror(errno)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReadBack>> ReadBack::Create(Verbs* verbs, Nic* nic) {
  WAYBILL_ASSIGN_OR_RETURN(SharedPages pages, SharedPages::Create(1, "what is read back"));
  std::unique_ptr<ReadBack> made(new ReadBack(verbs, nic, std::move(pages)));
  WAYBILL_RETURN_IF_ERROR(made->Make());
  return made;
}

ReadBack::~ReadBack() {
  queue_pair_ = nullptr;
  if (completions_ != nullptr) verbs_.DestroyCq(completions_);
  if (registration_ != nullptr) verbs_.DeregMr(registration_);
}

absl::Status ReadBack::Make() {
  const Device& device = nic_.device();
  registration_ = verbs_.RegMr(device.pd(), pages_.data(), 1, IBV_ACCESS_LOCAL_WRITE);
  if (registration_ == nullptr) return NoRoom("ibv_reg_mr", device);
  completions_ = verbs_.CreateCq(device.context(), /*entries=*/2, /*channel=*/nullptr);
  if (completions_ == nullptr) return NoRoom("ibv_create_cq", device);
  WAYBILL_ASSIGN_OR_RETURN(queue_pair_,
                           QueuePair::Create(&verbs_, &nic_, completions_, completions_, {},
                                             IBV_ACCESS_REMOTE_READ, "reading back"));
  WAYBILL_ASSIGN_OR_RETURN(const QueuePair::Plan plan, queue_pair_->PlanTo(queue_pair_->Address()));
  return queue_pair_->Connect(plan);
}

absl::Status ReadBack::Read(uint64_t address, uint32_t remote_key, absl::Time deadline) {
  ibv_sge landing{};
  landing.addr = reinterpret_cast<uintptr_t>(pages_.data());
  landing.length = 1;
  landing.lkey = registration_->lkey;
  ibv_send_wr request{};
  request.sg_list = &landing;
  request.num_sge = 1;
  request.opcode = IBV_WR_RDMA_READ;
  request.send_flags = IBV_SEND_SIGNALED;
  request.wr.rdma.remote_addr = address;
  request.wr.rdma.rkey = remote_key;
  ibv_send_wr* bad = nullptr;
  if (const int error = verbs_.PostSend(queue_pair_->get(), &request, &bad); error != 0) {
    return absl::UnavailableError(absl::StrCat("ibv_post_send: ", std::strerror(error)));
  }
  ibv_wc done{};
  int polled = 0;
  for (bool last = false; !last && polled == 0;) {
    last = SteadyNow() > deadline;  // Looked at before the poll: this thread may have been stopped.
    polled = verbs_.PollCq(completions_, 1, &done);
  }
  if (polled == 0) return absl::DeadlineExceededError("it does not answer");
  if (polled < 0) return absl::UnavailableError("its completion queue is lost");
  if (done.status == IBV_WC_SUCCESS) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(verbs_.StatusText(done.status), " (status ",
                                             static_cast<int>(done.status), ")"));
}

}  // namespace waybill::verbs
