// SPDX-License-Identifier: Apache-2.0

// Adds up counters of sources that come and go.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_COUNTER_LEDGER_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_COUNTER_LEDGER_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/time/time.h"

namespace waybill {

// The sums never fall: what a source has counted stays in the sum when the source is gone. Not
// thread-safe.
class CounterLedger {
 public:
  // How long a source may be away and go on with its count. Then it is forgotten, and counts anew.
  static constexpr absl::Duration kPatience = absl::Hours(1);

  // Records the present value of a source's counter. A value below the last one is that of a source
  // that began anew, and counts in full.
  void Record(const std::string& counter, const std::string& source, uint64_t value,
              absl::Time now);
  // Returns the sum of a counter over all sources, or 0 if nobody has counted.
  uint64_t Sum(const std::string& counter) const;
  // Returns the sums of all counters, by their names.
  const std::map<std::string, uint64_t>& sums() const { return sums_; }
  void ForgetOldSources(absl::Time now);

 private:
  struct Last {
    uint64_t value = 0;
    absl::Time seen;
  };
  std::map<std::string, uint64_t> sums_;                        // By counter.
  std::map<std::pair<std::string, std::string>, Last> values_;  // By counter and source.
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_COUNTER_LEDGER_H_
