// The model families: which tensors each has, how they are cut, and which are fused.
//
// One table a family. README.md says how to add one.
#ifndef WAYBILL_CORE_LAYOUT_FAMILIES_H_
#define WAYBILL_CORE_LAYOUT_FAMILIES_H_

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace waybill {

// A number of the model's configuration that an axis of a tensor is as long as.
enum class Extent : uint8_t {
  kNone,  // No such axis: a vector.
  kHidden,
  kInner,
  kQueries,  // heads * head_dim
  kKeys,     // kv_heads * head_dim
  kHeadDim,
  kVocabulary,
  kPositions,
};

// How tensor parallelism divides a tensor. Rows are outputs, whichever way they are stored.
enum class Cut : uint8_t {
  kWhole,       // Each rank has all of it.
  kRows,        // Equal parts of the outputs.
  kColumns,     // Equal parts of the inputs.
  kQueryHeads,  // Rows, by whole heads.
  kKvHeads,     // The same; each head on several ranks where there are more ranks than heads.
  kVocabulary,  // Rows; workers pad them to a multiple of 64 first.
  kChunks,      // Axis 0 as torch.chunk cuts it: equal but for the last ones.
};

enum class Where : uint8_t { kBeforeLayers, kLayer, kAfterLayers, kHead };

enum class Need : uint8_t {
  kRequired,
  kWhenStored,  // A bias that some models of the family have.
};

struct PartRule {
  absl::string_view tensor;  // Below the layer's name.
  Cut cut = Cut::kWhole;
  Extent rows = Extent::kHidden;
  Extent columns = Extent::kNone;
  // The part is section `section` of `sections` equal ones of the tensor's rows.
  int section = 0;
  int sections = 1;
};

// One parameter of a worker, from one tensor of the checkpoint or several, in this order.
struct ParameterRule {
  Where where = Where::kLayer;
  absl::string_view parameter;
  std::vector<PartRule> parts;
  Need need = Need::kRequired;
  bool stored_transposed = false;  // The checkpoint has [inputs, outputs], as Conv1D does.
};

// How config.json calls the numbers; empty: derived as ParseModelConfig() says.
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
  absl::string_view name;
  std::vector<absl::string_view> architectures;
  ConfigKeys keys;
  absl::string_view prefix;  // "model.": of all names but the head's; some checkpoints omit it.
  absl::string_view layer_infix;  // "layers.": followed by the layer's number and a dot.
  absl::string_view embedding;    // The tensor that a tied head names again.
  std::vector<ParameterRule> rules;
  std::vector<absl::string_view> ignored;  // Ends of names of what is stored but is no weight.
};

inline constexpr absl::string_view kHeadName = "lm_head.weight";

const std::vector<Family>& Families();

// Returns null if there is none.
const Family* FamilyOfArchitecture(absl::string_view architecture);

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_FAMILIES_H_
