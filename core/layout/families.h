// SPDX-License-Identifier: Apache-2.0

// The model families: which tensors each has, how tensor parallelism cuts them, and what each
// engine calls and fuses.
//
// Everything is data. README.md says how to add a family.
#ifndef WAYBILL_CORE_LAYOUT_FAMILIES_H_
#define WAYBILL_CORE_LAYOUT_FAMILIES_H_

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace waybill {

// A number of the model's configuration that an axis of a tensor is as long as.
enum class Extent : uint8_t {
  kNone,  // No such axis.
  kHidden,
  kInner,
  kQueries,  // heads * head_dim
  kKeys,     // kv_heads * head_dim
  kHeadDim,
  kHeads,
  kVocabularySize,
  kPositions,
  kExpertCount,
  kExpertInner,
  kTwiceExpertInner,
  kSharedInner,    // The number of shared experts * kExpertInner.
  kQueryLatent,    // MLA: q_lora_rank
  kLatent,         // MLA: kv_lora_rank
  kLatentAndRope,  // MLA: kv_lora_rank + qk_rope_head_dim
  kLatentQueries,  // MLA: heads * (qk_nope_head_dim + qk_rope_head_dim)
  kLatentKeys,     // MLA: heads * (qk_nope_head_dim + v_head_dim)
  kLatentValues,   // MLA: heads * v_head_dim
  kHiddenBlocks,   // MXFP4: hidden / 32
  kInnerBlocks,    // MXFP4: kExpertInner / 32
  kBlockBytes,     // MXFP4: 16 bytes hold a block of 32 elements.
};
inline constexpr size_t kExtentCount = 22;

// How tensor parallelism divides a tensor. Rows are outputs, whichever way they are stored.
enum class Cut : uint8_t {
  kWhole,       // Each rank has all of it.
  kRows,        // Equal parts of the outputs.
  kColumns,     // Equal parts of the inputs.
  kQueryHeads,  // Rows, by whole heads.
  kKvHeads,     // The same; each head on several ranks where there are more ranks than heads.
  kVocabulary,  // Rows; workers pad them to a multiple of 64 first.
  kChunks,      // Axis 0 as torch.chunk cuts it: equal but for the last ones.
  kFirstRank,   // The first rank has all of it, and the others have zeros.
};

// The scope of a tensor, which decides its name and its place in the engine's order.
enum class Where : uint8_t { kBeforeLayers, kLayer, kExpert, kAfterLayers, kHead };

// A group of rules. A family has some of the groups, and config.json decides about others.
enum class Block : uint8_t {
  kDecoder,  // Embedding, norms and head.
  kGqa,      // Attention with query, key and value heads.
  kQkvBias,
  kOtherBias,
  kQkNorm,
  kSinks,  // gpt-oss: one number for each head.
  kMla,    // Multi-head latent attention.
  kMlaLatentQuery,
  kMlaPlainQuery,
  kDenseMlp,  // The MLP of a layer without experts.
  kDenseMlpBias,
  // The blocks down to kPackedExperts belong to layers with experts.
  kRouter,
  kRouterF32,  // A router that engines hold in F32.
  kRouterBias,
  kSharedExperts,
  kExperts,
  kNamedRouter,     // gpt-oss.
  kStackedExperts,  // gpt-oss in BF16: all experts in one tensor.
  kPackedExperts,   // gpt-oss in MXFP4: all experts' blocks in one tensor, and their scales.
  kGpt2,
  kCacheScales,      // SGLang passes scales of the key/value cache to attention.
  kQkvBiasRequired,  // Marks without rules: the biases are there in every checkpoint.
  kOtherBiasRequired,
};
constexpr uint32_t Bit(Block block) { return uint32_t{1} << static_cast<uint32_t>(block); }

enum class FamilyId : uint8_t {
  kLlama,
  kQwen2,
  kQwen3,
  kQwen3Moe,
  kDeepseekV3,
  kGlm4Moe,
  kGptOss,
  kGpt2
};
constexpr uint16_t Bit(FamilyId id) { return static_cast<uint16_t>(1 << static_cast<int>(id)); }

enum class Engine : uint8_t { kVllm, kSglang };
absl::string_view Name(Engine engine);

// Describes one tensor of the checkpoint in each scope that has it.
struct TensorRule {
  // Bits that say how a tensor differs from a matrix or vector of the model's type.
  enum Mark : uint16_t {
    kPlain = 0,
    kTransposed = 1,  // The checkpoint has [inputs, outputs], as Conv1D does.
    kStacked = 2,     // Axis 0 counts experts.
    kF32 = 4,         // Stored as F32.
    kHeldAsF32 = 8,   // Engines hold it as F32.
    kBytes = 16,      // Stored as U8: packed elements or their scales, which only move verbatim.
    kKept = 32,       // Never quantised, though it is a matrix.
    kVllmOnly = 64,   // No tensor: a number that this engine alone has when it serves FP8.
    kSglangOnly = 128,
    kSglangHoldsF32 = 256,  // SGLang holds it as F32, and vLLM in the model's type.
  };

  Block block;
  Where where;
  Cut cut;
  std::array<Extent, 4> shape;
  char name[36];  // What follows the name of the layer or the expert.
  uint16_t marks = kPlain;
  uint8_t sections = 1;  // The number of equal parts of the rows. Each part is cut.

  bool Is(Mark mark) const { return (marks & mark) != 0; }
  bool engine_only() const { return (marks & (kVllmOnly | kSglangOnly)) != 0; }
  int dimensions() const;
  // Returns the axis of the checkpoint's tensor that the cut divides.
  int cut_axis() const;
};

// All rules of all families, in vLLM's order within each scope.
absl::Span<const TensorRule> TensorRules();

// A parameter in which an engine fuses tensors whose names end alike: "q_proj" + ".weight" and so
// on become "qkv_proj.weight". With one part it is a renaming.
struct FusingRule {
  uint8_t engines;  // 1 << Engine.
  Where where;      // kExpert: parts of each expert, stacked over the rank's experts.
  char parameter[40];
  char parts[32];  // Separated by spaces. Each part stands between dots of a tensor's name.
};
absl::Span<const FusingRule> FusingRules();

// A module that an engine calls differently: its parameters begin with `to` instead of `from`.
struct RenamingRule {
  Engine engine;
  FamilyId family;
  char from[14];
  char to[12];
};
absl::Span<const RenamingRule> RenamingRules();

// In an engine, the parameters that begin with `moved` come after those that begin with `after`.
struct OrderRule {
  Engine engine;
  uint16_t families;  // Bits of FamilyId.
  char moved[32];
  char after[32];
};
absl::Span<const OrderRule> OrderRules();

// The keys of the numbers in config.json. A number without a key is derived from the others.
struct ConfigKeys {
  absl::string_view hidden;
  absl::string_view inner;  // 4 * hidden where missing or null.
  absl::string_view layers;
  absl::string_view heads;
  absl::string_view kv_heads;   // `heads` where missing.
  absl::string_view head_dim;   // hidden / heads where missing.
  absl::string_view positions;  // Read only where positions are learnt.
  bool tied_by_default = false;
};

struct Family {
  FamilyId id;
  char name[12];
  char architecture[22];
  uint32_t blocks;  // Bits of Block; ParseModelConfig() adds those that depend on config.json.
  const ConfigKeys* keys;

  // Returns what all names but the head's begin with, such as "model.". Some checkpoints omit it.
  absl::string_view prefix() const { return id == FamilyId::kGpt2 ? "transformer." : "model."; }
  // Returns the text before a layer's number.
  absl::string_view layer_infix() const { return id == FamilyId::kGpt2 ? "h." : "layers."; }
  // Returns the name of the tensor that a tied head shares.
  absl::string_view embedding() const {
    return id == FamilyId::kGpt2 ? "wte.weight" : "embed_tokens.weight";
  }
  bool has_experts() const {
    return id != FamilyId::kLlama && id != FamilyId::kQwen2 && id != FamilyId::kQwen3 &&
           id != FamilyId::kGpt2;
  }
  // Returns true if a stored tensor of that name is no weight.
  bool Ignores(absl::string_view name) const;
};

inline constexpr absl::string_view kHeadName = "lm_head.weight";

absl::Span<const Family> Families();

// Returns null if there is none.
const Family* FamilyOfArchitecture(absl::string_view architecture);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_FAMILIES_H_
