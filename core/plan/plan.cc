// SPDX-License-Identifier: Apache-2.0

#include "core/plan/plan.h"

#include <string>
#include <utility>

#include "core/plan/plan_codec.h"
#include "core/plan/seams.h"
#include "kernels/digest.h"

namespace waybill {
namespace {

uint64_t HashOf(const Bundles& bundles, const std::vector<ExchangePattern>& exchanges) {
  std::vector<uint64_t> digests = {bundles.Digest()};
  for (const ExchangePattern& exchange : exchanges) {
    if (exchange.of_first.empty()) continue;
    const std::string bytes = EncodeRankPlan({}, exchange.of_first);
    digests.push_back(kernels::Digest(bytes.data(), bytes.size()));
  }
  return kernels::Digest(digests.data(), digests.size() * sizeof(uint64_t));
}

}  // namespace

Plan::Plan(std::shared_ptr<const Bundles> bundles, std::vector<ExchangePattern> exchanges,
           const Balance& balance)
    : bundles_(std::move(bundles)),
      exchanges_(std::move(exchanges)),
      balance_(balance),
      hash_(HashOf(*bundles_, exchanges_)) {}

Exchange Plan::SenderExchange(uint32_t sender) const {
  if (sender >= holder_count()) return {};
  const RankClasses& senders = bundles_->ranks().senders;
  return ExpandExchange(exchanges_[sender], bundles_->ranks().tensors,
                        senders.manifest(senders.class_of(sender)));
}

uint64_t Plan::total_bytes() const {
  uint64_t total = 0;
  for (uint32_t w = 0; w < receiver_count(); ++w) total += receiver_bytes(w);
  return total;
}

PlanTables MakeTables(const Plan& plan) {
  PlanTables tables;
  for (uint32_t t = 0; t < plan.sender_count(); ++t) {
    tables.senders.push_back(plan.SenderRoutes(t));
    tables.exchanges.push_back(plan.SenderExchange(t));
  }
  for (uint32_t w = 0; w < plan.receiver_count(); ++w) {
    tables.receivers.push_back(plan.ReceiverRoutes(w));
  }
  return tables;
}

}  // namespace waybill
