// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/counter_ledger.h"

#include <iterator>

namespace waybill {

void CounterLedger::Record(const std::string& counter, const std::string& source, uint64_t value,
                           absl::Time now) {
  Last& last = values_[{counter, source}];
  sums_[counter] += value < last.value ? value : value - last.value;
  last = {value, now};
}

uint64_t CounterLedger::Sum(const std::string& counter) const {
  const auto found = sums_.find(counter);
  return found == sums_.end() ? 0 : found->second;
}

void CounterLedger::ForgetOldSources(absl::Time now) {
  for (auto entry = values_.begin(); entry != values_.end();) {
    entry = now - entry->second.seen > kPatience ? values_.erase(entry) : std::next(entry);
  }
}

}  // namespace waybill
