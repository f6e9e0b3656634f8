// How many ranks share a model, and in which ways.
#ifndef WAYBILL_CORE_LAYOUT_SHARDING_H_
#define WAYBILL_CORE_LAYOUT_SHARDING_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace waybill {

// Ranks are numbered with tp fastest, then fsdp, then dp, and pp slowest:
//   rank = tp_rank + tp * (fsdp_rank + fsdp * (dp_rank + dp * pp_rank))
struct TrainerSharding {
  uint32_t fsdp = 1;  // Rows, as torch.chunk cuts them.
  uint32_t tp = 1;    // Rows or columns, by what the tensor is.
  uint32_t pp = 1;    // Layers.
  uint32_t dp = 1;    // Replicas.

  uint32_t world() const { return fsdp * tp * pp * dp; }
  uint32_t tp_rank(uint32_t rank) const { return rank % tp; }
  uint32_t fsdp_rank(uint32_t rank) const { return rank / tp % fsdp; }
  uint32_t dp_rank(uint32_t rank) const { return rank / tp / fsdp % dp; }
  uint32_t pp_rank(uint32_t rank) const { return rank / tp / fsdp / dp; }

  // "fsdp=2,tp=4": what is not named is 1, also everything; "2" is fsdp=2. kInvalidArgument:
  // another word, a word twice, a number outside [1, 65536], or a world beyond 65536.
  static absl::StatusOr<TrainerSharding> Parse(absl::string_view text);
};

// rank = tp_rank + tp * dp_rank; each dp replica is a whole engine.
struct WorkerSharding {
  uint32_t tp = 1;
  uint32_t dp = 1;

  uint32_t world() const { return tp * dp; }
  uint32_t tp_rank(uint32_t rank) const { return rank % tp; }
  uint32_t dp_rank(uint32_t rank) const { return rank / tp; }

  // "tp=2,dp=2", by the same rules; "2" is tp=2.
  static absl::StatusOr<WorkerSharding> Parse(absl::string_view text);
};

// Returns the text that Parse() reads: "fsdp=2,tp=4" without the factors of 1, or "whole".
std::string ToString(const TrainerSharding& sharding);
std::string ToString(const WorkerSharding& sharding);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_SHARDING_H_
