// SPDX-License-Identifier: Apache-2.0

#include "tools/check/expected_rows.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/status.h"

namespace waybill::check {
namespace {

bool EndsWith(const std::string& name, absl::string_view end) { return absl::EndsWith(name, end); }

// A model's rows of outputs for one rank, in order: `count` rows of `tensor` from `first` on.
struct Section {
  const StoredTensor* tensor;
  int64_t first;
  int64_t count;
};

class Expectation {
 public:
  Expectation(const StoredCheckpoint& checkpoint, std::string parameter,
              const std::vector<int64_t>& shape, const EngineRank& at)
      : checkpoint_(checkpoint),
        name_(std::move(parameter)),
        shape_(shape),
        at_(at),
        tp_(at.tp),
        rank_(at.rank % at.tp) {
    if (IsCutOverTheEngine()) {
      tp_ = at.tp * at.dp;
      rank_ = at.rank;
    }
    if (SharedExpertsAreWhole()) tp_ = 1, rank_ = 0;
  }

  absl::StatusOr<RowFunction> Rows() {
    const nlohmann::json& config = checkpoint_.config();
    const std::string type = config.is_object() ? config.value("model_type", "") : "";
    // A number that the engine has, and the model has not.
    if (Has("_scale") && shape_.empty()) return [](int64_t) { return ExpectedRow{}; };
    if (type == "gpt2") return Gpt2();
    if (type == "llama" || type == "qwen2" || type == "qwen3") return Decoder();
    if (type == "qwen3_moe" || type == "deepseek_v3" || type == "glm4_moe") return Mixture();
    WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(name_));
    return Generic(tensor);
  }

 private:
  absl::StatusOr<const StoredTensor*> Find(const std::string& name) const {
    // Some checkpoints leave the model's prefix out.
    for (const char* prefix : {"", "transformer.", "model."}) {
      const std::string stored =
          absl::StartsWith(name, prefix) ? name.substr(std::string(prefix).size()) : name;
      for (const std::string& candidate : {name, stored}) {
        if (const StoredTensor* tensor = checkpoint_.Find(candidate)) return tensor;
      }
    }
    return absl::InvalidArgumentError(
        absl::StrCat("check: parameter \"", name_, "\": the checkpoint has no \"", name, "\""));
  }

  bool Has(absl::string_view part) const { return absl::StrContains(name_, part); }

  // SGLang cuts all but attention and the embedding over all ranks of an engine.
  bool IsCutOverTheEngine() const {
    return at_.sglang && (Has(".mlp.") || absl::StartsWith(name_, "lm_head"));
  }
  // If vLLM deals experts out and replicates attention as well as cutting it, it divides the tokens
  // of DeepSeek-V3's shared experts, not the weights.
  bool SharedExpertsAreWhole() const {
    return !at_.sglang && Has("shared_experts") && at_.ep > 1 && at_.tp > 1 && at_.dp > 1 &&
           checkpoint_.config().value("model_type", "") == "deepseek_v3";
  }

  int64_t Number(const char* key) const { return checkpoint_.config().value(key, int64_t{0}); }
  int64_t width() const { return shape_.size() > 1 ? shape_.back() : 1; }

  // Whole, or rows as torch.chunk cuts them.
  RowFunction Generic(const StoredTensor* tensor) const {
    int64_t row_size = 1;
    for (size_t d = 1; d < tensor->shape.size(); ++d) row_size *= tensor->shape[d];
    const int64_t rows = tensor->shape.empty() ? 1 : tensor->shape[0];
    const bool whole = tp_ == 1 || tensor->shape.empty();  // A scalar has no rows to cut.
    const int64_t begin = whole ? 0 : (rows + tp_ - 1) / tp_ * rank_;
    const int64_t last = width();
    return [=](int64_t row) { return ExpectedRow{tensor, begin * row_size + row * last, 1}; };
  }

  // The rows of all sections in turn.
  RowFunction Fused(const std::vector<Section>& sections) const {
    const int64_t columns = width();
    return [=](int64_t row) {
      for (const Section& section : sections) {
        if (row < section.count) {
          return ExpectedRow{section.tensor, (section.first + row) * columns, 1};
        }
        row -= section.count;
      }
      return ExpectedRow{};
    };
  }

  absl::StatusOr<Section> Part(const std::string& tensor_name, int64_t units, int64_t unit_rows,
                               int64_t unit_tp) const {
    WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(tensor_name));
    if (units >= unit_tp) {
      const int64_t each = units / unit_tp * unit_rows;
      return Section{tensor, rank_ * each, each};
    }
    return Section{tensor, rank_ * units / unit_tp * unit_rows, unit_rows};  // Repeated heads.
  }

  absl::StatusOr<RowFunction> Vocabulary() const {
    WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(name_));
    const int64_t vocabulary = tensor->shape[0];
    const int64_t each = (vocabulary + 63) / 64 * 64 / tp_;
    const int64_t columns = width(), begin = rank_ * each;
    return [=](int64_t row) {
      if (begin + row >= vocabulary) return ExpectedRow{};
      return ExpectedRow{tensor, (begin + row) * columns, 1};
    };
  }

  // Columns of a matrix whose inputs are cut.
  absl::StatusOr<RowFunction> Columns() const {
    WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(name_));
    const int64_t all = tensor->shape[1], begin = all / tp_ * rank_;
    return [=](int64_t row) { return ExpectedRow{tensor, row * all + begin, 1}; };
  }

  absl::StatusOr<RowFunction> Decoder() const {
    if (EndsWith(name_, "embed_tokens.weight") || EndsWith(name_, "lm_head.weight")) {
      return Vocabulary();
    }
    if (EndsWith(name_, "o_proj.weight") || EndsWith(name_, "down_proj.weight")) return Columns();
    const int64_t heads = Number("num_attention_heads");
    const int64_t kv_heads = checkpoint_.config().value("num_key_value_heads", heads);
    const int64_t head = checkpoint_.config().value("head_dim", Number("hidden_size") / heads);
    const auto sibling = [&](const char* fused, const char* part) {
      return absl::StrReplaceAll(name_, {{fused, part}});
    };
    if (name_.find("qkv_proj") != std::string::npos) {
      WAYBILL_ASSIGN_OR_RETURN(const Section q,
                               Part(sibling("qkv_proj", "q_proj"), heads, head, tp_));
      WAYBILL_ASSIGN_OR_RETURN(const Section k,
                               Part(sibling("qkv_proj", "k_proj"), kv_heads, head, tp_));
      WAYBILL_ASSIGN_OR_RETURN(const Section v,
                               Part(sibling("qkv_proj", "v_proj"), kv_heads, head, tp_));
      return Fused({q, k, v});
    }
    if (name_.find("gate_up_proj") != std::string::npos) {
      const int64_t inner = Has("shared_experts")
                                ? Number("moe_intermediate_size") * Number("n_shared_experts")
                                : Number("intermediate_size");
      WAYBILL_ASSIGN_OR_RETURN(const Section gate,
                               Part(sibling("gate_up_proj", "gate_proj"), inner, 1, tp_));
      WAYBILL_ASSIGN_OR_RETURN(const Section up,
                               Part(sibling("gate_up_proj", "up_proj"), inner, 1, tp_));
      return Fused({gate, up});
    }
    WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(name_));
    // A norm or a router, whole.
    const int64_t columns = width();
    return [=](int64_t row) { return ExpectedRow{tensor, row * columns, 1}; };
  }

  // Models with experts; their other parameters are a decoder's, but for latent attention.
  absl::StatusOr<RowFunction> Mixture() const {
    if (Has("w13_weight") || Has("w2_weight")) return Experts();
    if (Has("fused_qkv_a_proj")) {
      const std::string attention = name_.substr(0, name_.find("fused_qkv_a_proj"));
      WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* query, Find(attention + "q_a_proj.weight"));
      WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* latent,
                               Find(attention + "kv_a_proj_with_mqa.weight"));
      return Fused({{query, 0, query->shape[0]}, {latent, 0, latent->shape[0]}});
    }
    if (EndsWith(name_, "q_b_proj.weight") || EndsWith(name_, "kv_b_proj.weight")) {
      WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(name_));
      const int64_t each = tensor->shape[0] / tp_;
      return Fused({{tensor, rank_ * each, each}});
    }
    return Decoder();
  }

  // The rank's experts one after the other, each whole or a part of it.
  absl::StatusOr<RowFunction> Experts() const {
    const int64_t parts = at_.tp * at_.dp / at_.ep, part = at_.rank % parts;
    const int64_t first = at_.rank / parts * shape_[0];
    const int64_t rows = shape_[1], columns = shape_[2];
    const std::string experts = name_.substr(0, name_.find(".mlp.experts.") + 13);
    std::vector<const StoredTensor*> gates, ups, downs;
    for (int64_t e = first; e < first + shape_[0]; ++e) {
      for (auto [tensors, name] : {std::pair(&gates, "gate_proj"), std::pair(&ups, "up_proj"),
                                   std::pair(&downs, "down_proj")}) {
        WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* tensor,
                                 Find(absl::StrCat(experts, e, ".", name, ".weight")));
        tensors->push_back(tensor);
      }
    }
    if (Has("w2_weight")) {
      return [=](int64_t row) {
        const StoredTensor* tensor = downs[static_cast<size_t>(row / rows)];
        return ExpectedRow{tensor, row % rows * tensor->shape[1] + part * columns, 1};
      };
    }
    const int64_t half = rows / 2;
    return [=](int64_t row) {
      const auto expert = static_cast<size_t>(row / rows);
      const int64_t of_part = part * half + row % half;
      return ExpectedRow{(row % rows < half ? gates : ups)[expert], of_part * columns, 1};
    };
  }

  // Conv1D weights are stored [inputs, outputs]: row r of the parameter is a column.
  absl::StatusOr<RowFunction> Gpt2() const {
    if (EndsWith(name_, "wte.weight") || EndsWith(name_, "lm_head.weight")) return Vocabulary();
    WAYBILL_ASSIGN_OR_RETURN(const StoredTensor* tensor, Find(name_));
    const int64_t outputs = tensor->shape.back();
    const int64_t tp = tp_, rank = rank_;
    const auto output_of = [=, name = name_](int64_t row) {
      if (EndsWith(name, "c_attn.weight") || EndsWith(name, "c_attn.bias")) {
        const int64_t each = outputs / 3 / tp;  // Rows of q, of k and of v.
        return row / each * (outputs / 3) + rank * each + row % each;
      }
      if (EndsWith(name, "c_fc.weight") || EndsWith(name, "c_fc.bias")) {
        return outputs / tp * rank + row;
      }
      return row;
    };
    if (EndsWith(name_, "c_attn.weight") || EndsWith(name_, "c_fc.weight")) {
      return [=](int64_t row) { return ExpectedRow{tensor, output_of(row), outputs}; };
    }
    if (EndsWith(name_, "c_proj.weight")) {
      const int64_t begin = tensor->shape[0] / tp * rank;
      return [=](int64_t row) { return ExpectedRow{tensor, begin * outputs + row, outputs}; };
    }
    if (shape_.size() == 1) {
      return [=](int64_t row) { return ExpectedRow{tensor, output_of(row), 1}; };
    }
    return [=](int64_t row) { return ExpectedRow{tensor, row * outputs, 1}; };  // wpe, whole.
  }

  const StoredCheckpoint& checkpoint_;
  const std::string name_;
  const std::vector<int64_t>& shape_;
  const EngineRank at_;
  int64_t tp_;  // Of how many parts this parameter has, and which of them.
  int64_t rank_;
};

}  // namespace

absl::StatusOr<RowFunction> ExpectedRows(const StoredCheckpoint& checkpoint,
                                         const std::string& parameter,
                                         const std::vector<int64_t>& shape, const EngineRank& at) {
  return Expectation(checkpoint, parameter, shape, at).Rows();
}

}  // namespace waybill::check
