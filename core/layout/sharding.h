// SPDX-License-Identifier: Apache-2.0

// How many ranks share a model, and in which ways.
#ifndef WAYBILL_CORE_LAYOUT_SHARDING_H_
#define WAYBILL_CORE_LAYOUT_SHARDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/layout/families.h"

namespace waybill {

// Part `index` of `count`.
struct Share {
  uint32_t count = 1;
  uint32_t index = 0;
};

// The half-open range of experts that a share has. If the number of shares does not divide the
// experts, the first shares have one more.
struct ExpertRange {
  int64_t begin = 0;
  int64_t end = 0;
};
ExpertRange ExpertsOf(Share share, int64_t experts);

enum class Framework : uint8_t {
  kFsdp2,     // Dimension 0 of each tensor is cut as torch.chunk cuts it. With replicas: HSDP.
  kFsdp1,     // The tensors of a layer form one flat array, which is cut into equal parts.
  kMegatron,  // Each tensor is cut by tensor, expert and pipeline parallelism.
};

// How Megatron holds the query, key and value weights of a rank.
enum class Qkv : uint8_t {
  kInterleaved,  // Per key/value head: its query heads, its key, its value. Megatron's default.
  kFused,        // All queries, all keys, all values.
  kSplit,        // Three tensors.
};

// FSDP numbers its ranks with tp fastest, then fsdp, then replicas, and pp slowest:
//   rank = tp_rank + tp * (fsdp_rank + fsdp * (replica + replicas * pp_rank))
// Experts are dealt to `ep` groups of the fsdp ranks, and their rows to the fsdp / ep ranks of a
// group: fsdp_rank = ep_rank + ep * rank within the group.
//
// Megatron numbers a stage's tp * replicas ranks with tp fastest for what is no expert, and for
// experts with etp fastest, then ep; what is left over repeats.
struct TrainerSharding {
  Framework framework = Framework::kFsdp2;
  uint32_t fsdp = 1;                  // Rows, or flat ranges.
  uint32_t tp = 1;                    // Rows or columns, by what the tensor is.
  uint32_t pp = 1;                    // Layers.
  uint32_t replicas = 1;              // The number of times that everything but experts is held.
  uint32_t ep = 1;                    // Whole experts.
  uint32_t etp = 1;                   // Megatron: rows or columns of experts. FSDP: tp is used.
  uint32_t vpp = 1;                   // Megatron: the number of chunks of each stage's layers.
  std::vector<uint32_t> stages = {};  // The number of layers of each stage. Empty: about equal.
  bool uneven_experts = false;        // `ep` need not divide the experts.
  Qkv qkv = Qkv::kInterleaved;        // Megatron only.
  // FSDP1 only: torch's use_orig_params, which begins each tensor at a multiple of 16 bytes.
  bool original_params = false;

  uint32_t world() const { return fsdp * tp * pp * replicas; }
  uint32_t tp_rank(uint32_t rank) const { return rank % tp; }
  uint32_t fsdp_rank(uint32_t rank) const { return rank / tp % fsdp; }
  uint32_t replica(uint32_t rank) const { return rank / tp / fsdp % replicas; }
  uint32_t pp_rank(uint32_t rank) const { return rank / tp / fsdp / replicas; }

  // Return the part of a tensor that tensor parallelism leaves the rank, the part of its rows that
  // FSDP leaves, and the part of the experts.
  Share TensorShare(uint32_t rank, bool of_expert) const;
  Share RowShare(uint32_t rank, bool of_expert) const;
  Share ExpertShare(uint32_t rank) const;

  // Returns the lowest rank that holds the same as `rank`. Ranks with the same answer have equal
  // manifests, so a caller makes one manifest for each distinct answer.
  uint32_t FirstLike(uint32_t rank, bool has_experts) const;

  // kInvalidArgument: numbers that do not fit together; says both, and what would be accepted.
  absl::Status Check() const;

  // Reads "fsdp=32,replicas=8", "fsdp1,fsdp=64" or "megatron,tp=16,pp=2,ep=8,stages=31+30". The
  // first word names the framework (fsdp2 if there is none). What is not named is 1; in Megatron,
  // etp is tp, and dp (the replicas) is as large as ep and etp need it. "" and "whole" are one
  // rank, and "2" is fsdp=2. README.md lists all words.
  //
  // kInvalidArgument: a word that the framework does not have, a word twice, a number outside [1,
  // 65536], a world beyond 65536 ranks, or what Check() refuses.
  static absl::StatusOr<TrainerSharding> Parse(absl::string_view text);
};

// The kernel that vLLM takes for experts in MXFP4. It rounds their sizes up for the kernel.
enum class Mxfp4Kernel : uint8_t {
  kTriton,   // vLLM's choice on Hopper. Also Humming.
  kTrtllm,   // vLLM's choice on Blackwell, from FlashInfer. Also Marlin.
  kCutlass,  // FlashInfer's or vLLM's own. Also DeepGEMM.
  kCpu,
};
absl::string_view Name(Mxfp4Kernel kernel);

// rank = tp_rank + tp * (dp_rank + dp * replica). An engine is tp * dp ranks.
struct WorkerSharding {
  uint32_t tp = 1;        // Attention's heads.
  uint32_t dp = 1;        // The number of times that an engine holds the attention.
  uint32_t ep = 1;        // Whole experts; 1: all experts are cut over all ranks of the engine.
  uint32_t replicas = 1;  // Engines.
  Engine engine = Engine::kVllm;
  bool uneven_experts = false;               // `ep` need not divide the experts, as in vLLM.
  Mxfp4Kernel mxfp4 = Mxfp4Kernel::kTriton;  // vLLM only.

  uint32_t engine_ranks() const { return tp * dp; }
  uint32_t world() const { return engine_ranks() * replicas; }
  uint32_t engine_rank(uint32_t rank) const { return rank % engine_ranks(); }

  // Returns the part of an engine's tensor that the rank holds.
  Share TensorShare(const TensorRule& rule, const Family& family, uint32_t rank) const;
  Share ExpertShare(uint32_t rank) const;

  // Like the functions of TrainerSharding.
  uint32_t FirstLike(uint32_t rank, bool has_experts) const;
  absl::Status Check() const;

  // Reads such as "tp=4,dp=2,ep=8,replicas=3,engine=sglang", by the same rules. "2" is tp=2.
  static absl::StatusOr<WorkerSharding> Parse(absl::string_view text);
};

// Returns the text that Parse() reads, without what is the default, or "whole".
std::string ToString(const TrainerSharding& sharding);
std::string ToString(const WorkerSharding& sharding);

// Returns the numbers that divide `number`, such as "1, 2, 4 or 8". If there are many, the small
// ones: "1, 2, 3, ... or another divisor of 720720". Numbers beyond 65536 are left out.
std::string Divisors(int64_t number);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_SHARDING_H_
