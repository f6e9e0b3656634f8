// SPDX-License-Identifier: Apache-2.0

#include "core/layout/trainer_layout.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/narrow.h"
#include "core/base/status.h"

namespace waybill {
namespace {

constexpr uint64_t kAlignmentBytes = 64;
constexpr uint64_t kTorchAlignmentBytes = 16;  // Where FSDP1 begins original parameters.

// Returns the stage that has a tensor. Layers are dealt in `vpp` rounds, in each of which a stage
// gets one of its chunks. Without `stages`, the chunks of a round differ by one layer at most.
uint32_t StageOf(const ModelTensor& tensor, const ModelConfig& config,
                 const TrainerSharding& sharding) {
  if (tensor.rule->where == Where::kBeforeLayers) return 0;
  if (tensor.layer < 0) return sharding.pp - 1;
  const int64_t round_layers = config.layers / sharding.vpp;
  const int64_t layer = tensor.layer % round_layers;
  if (sharding.stages.empty()) {
    return static_cast<uint32_t>(((layer + 1) * sharding.pp - 1) / round_layers);
  }
  uint32_t stage = 0;
  for (int64_t end = sharding.stages[0] / sharding.vpp; layer >= end;) {
    end += sharding.stages[++stage] / sharding.vpp;
  }
  return stage;
}

// The part of a tensor that tensor and expert parallelism leave a rank.
struct Local {
  const CheckpointTensor* tensor = nullptr;
  int axis = 0;            // Along which boxes of the sections lie one behind the other.
  std::vector<Box> boxes;  // The extents of all but `axis` are the same.

  int64_t extent(int d) const {
    if (d != axis) return boxes[0].extent(d);
    int64_t sum = 0;
    for (const Box& box : boxes) sum += box.extent(d);
    return sum;
  }
  std::vector<int64_t> extents() const {
    std::vector<int64_t> all;
    all.reserve(static_cast<size_t>(boxes[0].dimensions()));
    for (int d = 0; d < boxes[0].dimensions(); ++d) all.push_back(extent(d));
    return all;
  }
};

// Calls emit(box, flat index of the box's first element) for the boxes that together are elements
// [begin, end) of a dense tensor of that shape. `box` is whole in the axes from `d` on.
void ForEachFlatBox(absl::Span<const int64_t> shape, int64_t begin, int64_t end, size_t d, Box box,
                    int64_t origin, absl::FunctionRef<void(const Box&, int64_t)> emit) {
  if (begin == end) return;
  if (d == shape.size()) return emit(box, origin);
  int64_t inner = 1;
  for (size_t i = d + 1; i < shape.size(); ++i) inner *= shape[i];
  const auto axis = static_cast<int>(d);
  const int64_t first_whole = (begin + inner - 1) / inner;
  const int64_t last_whole = end / inner;
  const auto part_of_row = [&](int64_t row, int64_t from, int64_t to) {
    box.Set(axis, row, row + 1);
    ForEachFlatBox(shape, from, to, d + 1, box, origin + row * inner, emit);
  };
  if (first_whole > last_whole) {  // Within one row.
    return part_of_row(last_whole, begin - last_whole * inner, end - last_whole * inner);
  }
  if (begin < first_whole * inner) {
    part_of_row(first_whole - 1, begin - (first_whole - 1) * inner, inner);
  }
  if (first_whole < last_whole) {
    Box rows = box;
    rows.Set(axis, first_whole, last_whole);
    emit(rows, origin + first_whole * inner);
  }
  if (last_whole * inner < end) part_of_row(last_whole, 0, end - last_whole * inner);
}

// Collects a rank's shards, each tensor's densely behind the one before.
class Memory {
 public:
  explicit Memory(const ModelConfig& config) : config_(config) {}

  // Adds share `rows` of dimension 0. A number alone is one row.
  void AddRows(const Local& local, Share rows) {
    const CheckpointTensor& tensor = *local.tensor;
    if (tensor.shape.empty()) {
      if (rows.index == 0) Place(tensor, local.boxes[0], end_bytes_, {});
      return Take(rows.index == 0 ? SizeBytes(tensor.dtype) : 0);
    }
    std::vector<int64_t> extents = local.extents();
    const CutRange range = TorchChunk(extents[0], rows);
    const int64_t first = local.axis == 0 ? 0 : local.boxes[0].begin(0);
    extents[0] = range.extent();
    std::vector<int64_t> strides(extents.size());
    RowMajorStrides(extents, absl::MakeSpan(strides));

    int64_t along = 0;  // The extent of the boxes before, along the axis that tp cut.
    for (Box box : local.boxes) {
      const int64_t begin = along;
      along += box.extent(local.axis);
      int64_t origin = begin;
      if (local.axis == 0) {
        const int64_t from = std::max(begin, range.begin);
        const int64_t to = std::max(from, std::min(along, range.end));
        box.Set(0, box.begin(0) + from - begin, box.begin(0) + to - begin);
        origin = from - range.begin;
      } else {
        box.Set(0, first + range.begin, first + range.end);
      }
      if (box.empty()) continue;
      const int64_t offset = origin * strides[static_cast<size_t>(local.axis)];
      Place(tensor, box, end_bytes_ + static_cast<uint64_t>(offset) * SizeBytes(tensor.dtype),
            strides);
    }
    Take(static_cast<uint64_t>(Box::Whole(extents).element_count()) * SizeBytes(tensor.dtype));
  }

  // Adds query, key and value as one tensor: `groups` times a part of each.
  void AddQkv(absl::Span<const Local> qkv, int64_t groups) {
    uint64_t size_bytes = 0;
    for (int64_t group = 0; group < groups; ++group) {
      for (const Local& local : qkv) {
        Box box = local.boxes[0];
        const int64_t rows = box.extent(0) / groups;
        box.Set(0, box.begin(0) + group * rows, box.begin(0) + (group + 1) * rows);
        std::vector<int64_t> strides(local.tensor->shape.size());
        RowMajorStrides(local.extents(), absl::MakeSpan(strides));
        Place(*local.tensor, box, end_bytes_ + size_bytes, strides);
        size_bytes += static_cast<uint64_t>(box.element_count()) * SizeBytes(local.tensor->dtype);
      }
    }
    Take(size_bytes);
  }

  // Adds share `share` of the concatenated tensors, which have one dtype. If `aligned`, each begins
  // where torch aligns it.
  void AddFlat(absl::Span<const CheckpointTensor* const> tensors, Share share, bool aligned) {
    const uint64_t element_bytes = SizeBytes(tensors[0]->dtype);
    const uint64_t multiple = aligned ? kTorchAlignmentBytes / element_bytes : 1;
    const auto align = [&](int64_t flat) {
      return static_cast<int64_t>(RoundUp(static_cast<uint64_t>(flat), multiple));
    };
    int64_t total = 0;
    for (const CheckpointTensor* tensor : tensors) {
      total = align(total) + Box::Whole(tensor->shape).element_count();
    }
    const CutRange range = TorchChunk(total, share);
    int64_t at = 0;  // The flat index of the tensor's first element.
    for (const CheckpointTensor* tensor : tensors) {
      const Box whole = Box::Whole(tensor->shape);
      const int64_t count = whole.element_count();
      at = align(at);
      const int64_t begin = std::clamp<int64_t>(range.begin - at, 0, count);
      const int64_t end = std::clamp<int64_t>(range.end - at, begin, count);
      std::vector<int64_t> strides(tensor->shape.size());
      RowMajorStrides(tensor->shape, absl::MakeSpan(strides));
      ForEachFlatBox(tensor->shape, begin, end, 0, whole, 0, [&](const Box& box, int64_t flat) {
        Place(*tensor, box,
              end_bytes_ + static_cast<uint64_t>(at + flat - range.begin) * element_bytes, strides);
      });
      at += count;
    }
    // The last ranks' ranges are as long as the others', with nothing at their end.
    Take(static_cast<uint64_t>(TorchChunk(total, {share.count, 0}).extent()) * element_bytes);
  }

  Manifest Finish() && {
    // Memory of no bytes cannot be registered; a rank may hold nothing.
    manifest_.AddRegion("weights", std::max(end_bytes_, kAlignmentBytes));
    return std::move(manifest_);
  }

 private:
  void Place(const CheckpointTensor& tensor, const Box& box, uint64_t offset_bytes,
             absl::Span<const int64_t> strides) {
    // The shards of a tensor follow each other, but for interleaved query, key and value.
    const auto known = std::find_if(recent_.rbegin(), recent_.rend(),
                                    [&](const auto& r) { return r.first == &tensor; });
    uint32_t index;
    if (known != recent_.rend()) {
      index = known->second;
    } else {
      index = manifest_.AddTensor(tensor.name, tensor.shape, tensor.dtype);
      if (IsTiedEmbedding(tensor.name)) manifest_.AddAlias(kHeadName, index);
      if (recent_.size() == 3) recent_.erase(recent_.begin());
      recent_.emplace_back(&tensor, index);
    }
    manifest_.AddShard(index, Format{tensor.dtype}, box, {0, offset_bytes, strides});
  }

  bool IsTiedEmbedding(absl::string_view name) const {
    if (config_.family == nullptr || !config_.tied_head) return false;
    absl::ConsumePrefix(&name, config_.family->prefix());
    return name == config_.family->embedding();
  }

  void Take(uint64_t size_bytes) { end_bytes_ = RoundUp(end_bytes_ + size_bytes, kAlignmentBytes); }

  const ModelConfig& config_;
  Manifest manifest_;
  std::vector<std::pair<const CheckpointTensor*, uint32_t>> recent_;
  uint64_t end_bytes_ = 0;
};

absl::Status CheckStages(const ModelConfig& config, const TrainerSharding& sharding) {
  if (sharding.pp > 1 && config.family == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("pp=", sharding.pp,
                                                   ": a generic model has no layers to deal out (",
                                                   config.generic_reason, ")"));
  }
  if (sharding.stages.empty()) {
    if (sharding.vpp > 1 && config.layers % (int64_t{sharding.pp} * sharding.vpp) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "pp=", sharding.pp, " times vpp=", sharding.vpp, " does not divide the model's ",
          config.layers, " layers; their product may be ", Divisors(config.layers),
          ", or stages= may say the layers of each stage"));
    }
    if (sharding.pp <= 1 || sharding.pp <= config.layers) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("pp=", sharding.pp, ": the model has ",
                                                   config.layers, " layers; pp may be 1 to ",
                                                   config.layers));
  }
  const int64_t layers =
      std::accumulate(sharding.stages.begin(), sharding.stages.end(), int64_t{0});
  if (layers == config.layers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("stages=", absl::StrJoin(sharding.stages, "+"),
                                                 " hold ", layers, " layers, and the model has ",
                                                 config.layers, "; the stages have to add up to ",
                                                 config.layers));
}

absl::Status CheckSharding(const ModelConfig& config, const TrainerSharding& sharding,
                           uint32_t rank) {
  WAYBILL_RETURN_IF_ERROR(sharding.Check());
  if (rank >= sharding.world()) {
    return absl::InvalidArgumentError(absl::StrCat("trainer ", rank, ": ", ToString(sharding),
                                                   " has ", sharding.world(), " ranks"));
  }
  if (config.family == nullptr && sharding.framework == Framework::kMegatron) {
    return absl::InvalidArgumentError(
        absl::StrCat("megatron: which way it cuts the tensors of a generic model is not known (",
                     config.generic_reason, ")"));
  }
  WAYBILL_RETURN_IF_ERROR(CheckStages(config, sharding));
  return CutExperts(config, sharding.ExpertShare(rank), sharding.uneven_experts).status();
}

class TrainerCutter {
 public:
  TrainerCutter(absl::Span<const ModelTensor> tensors, const ModelConfig& config,
                const TrainerSharding& sharding, uint32_t rank)
      : tensors_(tensors),
        config_(config),
        sharding_(sharding),
        rank_(rank),
        experts_(ExpertsOf(sharding.ExpertShare(rank), config.experts())),
        memory_(config) {}

  absl::StatusOr<Manifest> Run() && {
    if (sharding_.framework == Framework::kFsdp1) {
      AddFlatUnits();
      return std::move(memory_).Finish();
    }
    const bool fuses = sharding_.framework == Framework::kMegatron && sharding_.qkv != Qkv::kSplit;
    // Heads first: they are what limits tp most, and what a user knows.
    const auto heads = std::find_if(tensors_.begin(), tensors_.end(), [](const ModelTensor& t) {
      return t.rule->cut == Cut::kQueryHeads;
    });
    if (heads != tensors_.end()) WAYBILL_RETURN_IF_ERROR(Cut(*heads).status());
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (!IsHeld(tensors_[i])) continue;
      WAYBILL_ASSIGN_OR_RETURN(Local local, Cut(tensors_[i]));
      if (fuses && BeginsQkv(i)) {
        std::vector<Local> qkv = {std::move(local)};
        for (int k = 0; k < 2; ++k) {
          WAYBILL_ASSIGN_OR_RETURN(qkv.emplace_back(), Cut(tensors_[++i]));
        }
        memory_.AddQkv(qkv, sharding_.qkv == Qkv::kFused ? 1 : KvHeadsHeld());
        continue;
      }
      memory_.AddRows(local, sharding_.RowShare(rank_, OfExpert(tensors_[i])));
    }
    return std::move(memory_).Finish();
  }

 private:
  static bool OfExpert(const ModelTensor& tensor) {
    return tensor.expert >= 0 || tensor.rule->Is(TensorRule::kStacked);
  }

  bool IsHeld(const ModelTensor& tensor) const {
    if (tensor.tensor == nullptr) return false;
    if (tensor.expert >= 0 && (tensor.expert < experts_.begin || tensor.expert >= experts_.end)) {
      return false;
    }
    return StageOf(tensor, config_, sharding_) == sharding_.pp_rank(rank_);
  }

  // Tensor i is the query of attention with key/value heads; its key and value follow.
  bool BeginsQkv(size_t i) const {
    return tensors_[i].rule->cut == Cut::kQueryHeads && i + 2 < tensors_.size() &&
           tensors_[i + 1].rule->cut == Cut::kKvHeads && tensors_[i + 2].rule->cut == Cut::kKvHeads;
  }

  int64_t KvHeadsHeld() const { return std::max<int64_t>(1, config_.kv_heads / sharding_.tp); }

  absl::StatusOr<Local> Cut(const ModelTensor& tensor) {
    const TensorRule& rule = *tensor.rule;
    Local local{tensor.tensor, rule.cut_axis()};
    const bool of_expert = OfExpert(tensor);
    const bool megatron = sharding_.framework == Framework::kMegatron;
    WAYBILL_ASSIGN_OR_RETURN(
        const CutRange range,
        CutTensor(tensor, config_, sharding_.TensorShare(rank_, of_expert),
                  megatron ? VocabularyRows::kMegatron : VocabularyRows::kChunked,
                  of_expert && megatron ? "etp" : "tp"));
    for (int section = 0; section < rule.sections; ++section) {
      Box box = Box::Whole(tensor.tensor->shape);
      if (rule.Is(TensorRule::kStacked)) box.Set(0, experts_.begin, experts_.end);
      if (box.dimensions() > 0) {
        const int64_t origin = box.extent(local.axis) / rule.sections * section;
        box.Set(local.axis, origin + range.begin, origin + range.end);
        if (!local.boxes.empty() && local.boxes.back().end(local.axis) == box.begin(local.axis)) {
          local.boxes.back().Set(local.axis, local.boxes.back().begin(local.axis),
                                 box.end(local.axis));
          continue;
        }
      }
      local.boxes.push_back(box);
    }
    return local;
  }

  // A unit is a layer, or all that is outside the layers. Each dtype of a unit has an array.
  void AddFlatUnits() {
    std::vector<std::vector<const CheckpointTensor*>> unit, outside;
    const auto add = [](std::vector<std::vector<const CheckpointTensor*>>& to,
                        const CheckpointTensor* tensor) {
      for (auto& same : to) {
        if (same[0]->dtype == tensor->dtype) return AddToFlat(same, tensor);
      }
      to.push_back({tensor});
    };
    const auto finish = [&](absl::Span<const std::vector<const CheckpointTensor*>> flats) {
      for (const auto& flat : flats) {
        memory_.AddFlat(flat, sharding_.RowShare(rank_, false), sharding_.original_params);
      }
    };
    for (size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].tensor != nullptr) {
        add(tensors_[i].layer < 0 ? outside : unit, tensors_[i].tensor);
      }
      if (i + 1 < tensors_.size() && tensors_[i + 1].layer == tensors_[i].layer) continue;
      finish(unit);
      unit.clear();
    }
    finish(outside);
  }

  // torch walks modules, so a module's bias follows its weight; the rules have all weights that an
  // engine fuses before their biases.
  static void AddToFlat(std::vector<const CheckpointTensor*>& flat,
                        const CheckpointTensor* tensor) {
    absl::string_view module = tensor->name;
    const auto weight =
        absl::ConsumeSuffix(&module, ".bias")
            ? std::find_if(flat.begin(), flat.end(),
                           [&](const CheckpointTensor* other) {
                             absl::string_view name = other->name;
                             return absl::ConsumeSuffix(&name, ".weight") && name == module;
                           })
            : flat.end();
    flat.insert(weight == flat.end() ? weight : weight + 1, tensor);
  }

  const absl::Span<const ModelTensor> tensors_;
  const ModelConfig& config_;
  const TrainerSharding& sharding_;
  const uint32_t rank_;
  const ExpertRange experts_;
  Memory memory_;
};

}  // namespace

absl::StatusOr<Manifest> MakeTrainerManifest(absl::Span<const ModelTensor> tensors,
                                             const ModelConfig& config,
                                             const TrainerSharding& sharding, uint32_t rank) {
  WAYBILL_RETURN_IF_ERROR(CheckSharding(config, sharding, rank));
  return TrainerCutter(tensors, config, sharding, rank).Run();
}

absl::StatusOr<Manifest> MakeTrainerManifest(absl::Span<const CheckpointTensor> tensors,
                                             const ModelConfig& config,
                                             const TrainerSharding& sharding, uint32_t rank) {
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<ModelTensor> found, FindTensors(tensors, config));
  return MakeTrainerManifest(found, config, sharding, rank);
}

}  // namespace waybill
