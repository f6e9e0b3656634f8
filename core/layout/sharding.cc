// SPDX-License-Identifier: Apache-2.0

#include "core/layout/sharding.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "core/base/status.h"

namespace waybill {
namespace {

constexpr uint64_t kMaxWorld = 65536;
constexpr size_t kMostDivisors = 10;  // In a message.

// One word of a text: a number, a choice between names, or a list of numbers.
struct Field {
  absl::string_view name;
  uint32_t* number = nullptr;
  bool counts = true;                              // The number multiplies the ranks.
  absl::Span<const absl::string_view> names = {};  // The names of a choice's numbers.
  std::vector<uint32_t>* list = nullptr;
};

constexpr absl::string_view kFrameworks[] = {"fsdp2", "fsdp1", "megatron"};
constexpr absl::string_view kEngines[] = {"vllm", "sglang"};
constexpr absl::string_view kMxfp4Kernels[] = {"triton", "trtllm", "cutlass", "cpu"};
constexpr absl::string_view kQkvs[] = {"interleaved", "fused", "split"};
constexpr absl::string_view kExpertDeals[] = {"even", "uneven"};
constexpr absl::string_view kParams[] = {"flat", "original"};

absl::Status ReadNumber(const Field& field, absl::string_view text, uint32_t& value) {
  if (absl::SimpleAtoi(text, &value) && value > 0 && value <= kMaxWorld) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      field.name, " is \"", text, "\", allowed are whole numbers from 1 to ", kMaxWorld));
}

absl::Status ReadField(const Field& field, absl::string_view text) {
  if (field.list != nullptr) {
    for (const absl::string_view item : absl::StrSplit(text, '+')) {
      WAYBILL_RETURN_IF_ERROR(ReadNumber(field, item, field.list->emplace_back()));
    }
    return absl::OkStatus();
  }
  if (field.names.empty()) return ReadNumber(field, text, *field.number);
  const auto found = std::find(field.names.begin(), field.names.end(), text);
  if (found == field.names.end()) {
    return absl::InvalidArgumentError(absl::StrCat(field.name, " is \"", text, "\", allowed are ",
                                                   absl::StrJoin(field.names, ", ")));
  }
  *field.number = static_cast<uint32_t>(found - field.names.begin());
  return absl::OkStatus();
}

// `seen` has one bit for each field that the text names.
absl::Status ParseFields(absl::string_view text, absl::Span<const Field> fields, uint64_t& seen) {
  if (text.empty() || text == "whole") return absl::OkStatus();
  uint64_t world = 1;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    // A number alone is the first way: so many rows, or parts.
    if (uint32_t number; item == text && absl::SimpleAtoi(text, &number)) {
      pair = {fields[0].name, text};
    }
    const auto field = std::find_if(fields.begin(), fields.end(),
                                    [&](const Field& f) { return f.name == pair.first; });
    if (field == fields.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", pair.first, "\" is not one of ",
          absl::StrJoin(fields, ", ",
                        [](std::string* out, const Field& f) { absl::StrAppend(out, f.name); })));
    }
    const uint64_t bit = uint64_t{1} << (field - fields.begin());
    if ((seen & bit) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(pair.first, " is said twice"));
    }
    seen |= bit;
    WAYBILL_RETURN_IF_ERROR(ReadField(*field, pair.second));
    if (field->number == nullptr || !field->counts || !field->names.empty()) continue;
    world *= *field->number;
    if (world > kMaxWorld) {
      return absl::InvalidArgumentError(
          absl::StrCat("more than the ", kMaxWorld, " ranks that are allowed"));
    }
  }
  return absl::OkStatus();
}

// Collects the words whose values are not the default.
class Printer {
 public:
  void Add(absl::string_view name, uint32_t value, uint32_t otherwise = 1) {
    if (value != otherwise) AddText(absl::StrCat(name, "=", value));
  }
  void AddText(absl::string_view item) { absl::StrAppend(&text_, text_.empty() ? "" : ",", item); }
  std::string Finish() const { return text_.empty() ? "whole" : text_; }

 private:
  std::string text_;
};

absl::Status DoesNotDivide(absl::string_view part, uint64_t divisor, absl::string_view whole,
                           uint64_t number) {
  return absl::InvalidArgumentError(absl::StrCat(part, "=", divisor, " does not divide ", whole,
                                                 "=", number, "; ", part, " may be ",
                                                 Divisors(static_cast<int64_t>(number))));
}

}  // namespace

absl::string_view Name(Mxfp4Kernel kernel) { return kMxfp4Kernels[static_cast<size_t>(kernel)]; }

std::string Divisors(int64_t number) {
  std::vector<int64_t> divisors;
  const int64_t largest = std::min<int64_t>(number, kMaxWorld);
  for (int64_t d = 1; d <= largest; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  if (divisors.size() < 2) return "1";
  if (divisors.size() > kMostDivisors) {
    divisors.resize(kMostDivisors);
    return absl::StrCat(absl::StrJoin(divisors, ", "), " or another divisor of ", number);
  }
  const int64_t last = divisors.back();
  divisors.pop_back();
  return absl::StrCat(absl::StrJoin(divisors, ", "), " or ", last);
}

ExpertRange ExpertsOf(Share share, int64_t experts) {
  const int64_t each = experts / share.count;
  const int64_t more = experts % share.count;
  const auto begin = [&](int64_t index) { return index * each + std::min(index, more); };
  return {begin(share.index), begin(int64_t{share.index} + 1)};
}

Share TrainerSharding::TensorShare(uint32_t rank, bool of_expert) const {
  if (framework != Framework::kMegatron || !of_expert) return {tp, tp_rank(rank)};
  return {etp, rank % (tp * replicas) % etp};
}

Share TrainerSharding::RowShare(uint32_t rank, bool of_expert) const {
  if (!of_expert) return {fsdp, fsdp_rank(rank)};
  return framework == Framework::kMegatron ? Share{} : Share{fsdp / ep, fsdp_rank(rank) / ep};
}

Share TrainerSharding::ExpertShare(uint32_t rank) const {
  if (framework != Framework::kMegatron) return {ep, fsdp_rank(rank) % ep};
  return {ep, rank % (tp * replicas) / etp % ep};
}

uint32_t TrainerSharding::FirstLike(uint32_t rank, bool has_experts) const {
  const uint32_t stage = fsdp * tp * replicas;
  // A stage's ranks repeat with this period.
  uint32_t period = fsdp * tp;
  if (framework == Framework::kMegatron && has_experts) period = std::lcm(tp, etp * ep);
  return rank / stage * stage + rank % stage % period;
}

absl::Status TrainerSharding::Check() const {
  if (framework == Framework::kMegatron) {
    if (tp * replicas % (ep * etp) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ep=", ep, " times etp=", etp, " does not divide the tp=", tp, " times dp=", replicas,
          " ranks of a stage; their product may be ", Divisors(int64_t{tp} * replicas)));
    }
  } else if (fsdp % ep != 0) {
    return DoesNotDivide("ep", ep, "fsdp", fsdp);
  }
  if (!stages.empty() && stages.size() != pp) {
    return absl::InvalidArgumentError(
        absl::StrCat("stages lists ", stages.size(), " stages, and pp=", pp, " wants ", pp));
  }
  if (vpp > 1 && pp == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "vpp=", vpp, " with pp=1: Megatron has virtual stages only if pp is 2 or more"));
  }
  for (size_t i = 0; i < stages.size(); ++i) {
    if (stages[i] % vpp != 0) {
      return absl::InvalidArgumentError(absl::StrCat("vpp=", vpp, " does not divide the ",
                                                     stages[i], " layers of stage ", i,
                                                     "; vpp may be ", Divisors(stages[i])));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TrainerSharding> TrainerSharding::Parse(absl::string_view text) {
  const auto parse = [&]() -> absl::StatusOr<TrainerSharding> {
    TrainerSharding s;
    uint32_t uneven = 0, qkv = 0, original = 0;
    absl::string_view rest = text;
    const std::pair<absl::string_view, absl::string_view> first =
        absl::StrSplit(text, absl::MaxSplits(',', 1));
    const auto* const named =
        std::find(std::begin(kFrameworks), std::end(kFrameworks), first.first);
    if (named != std::end(kFrameworks)) {
      s.framework = static_cast<Framework>(named - kFrameworks);
      rest = first.second;
    }
    std::vector<Field> fields = {{"fsdp", &s.fsdp}};
    if (s.framework == Framework::kMegatron) fields.clear();
    if (s.framework != Framework::kFsdp1) {
      fields.insert(fields.end(), {{"tp", &s.tp}, {"pp", &s.pp}});
    }
    fields.push_back({s.framework == Framework::kMegatron ? "dp" : "replicas", &s.replicas});
    if (s.framework != Framework::kFsdp1) {
      fields.push_back({"ep", &s.ep, /*counts=*/false});
      fields.push_back({.name = "stages", .list = &s.stages});
    }
    if (s.framework == Framework::kFsdp2) {
      fields.push_back({.name = "experts", .number = &uneven, .names = kExpertDeals});
    } else if (s.framework == Framework::kFsdp1) {
      fields.push_back({.name = "params", .number = &original, .names = kParams});
    } else {
      fields.push_back({"etp", &s.etp, /*counts=*/false});
      fields.push_back({"vpp", &s.vpp, /*counts=*/false});
      fields.push_back({.name = "qkv", .number = &qkv, .names = kQkvs});
    }
    uint64_t seen = 0;
    WAYBILL_RETURN_IF_ERROR(ParseFields(rest, fields, seen));
    const auto said = [&](absl::string_view name) {
      for (size_t i = 0; i < fields.size(); ++i) {
        if (fields[i].name == name) return (seen >> i & 1) != 0;
      }
      return false;
    };
    s.uneven_experts = uneven != 0;
    s.qkv = static_cast<Qkv>(qkv);
    s.original_params = original != 0;
    if (!s.stages.empty() && !said("pp")) s.pp = static_cast<uint32_t>(s.stages.size());
    if (s.framework == Framework::kMegatron) {
      if (!said("etp")) s.etp = s.tp;
      const uint64_t wanted = uint64_t{s.ep} * s.etp;
      if (!said("dp") && wanted % s.tp == 0) s.replicas = static_cast<uint32_t>(wanted / s.tp);
      if (uint64_t{s.tp} * s.pp * s.replicas > kMaxWorld || wanted > kMaxWorld) {
        return absl::InvalidArgumentError(
            absl::StrCat("more than the ", kMaxWorld, " ranks that are allowed"));
      }
    }
    WAYBILL_RETURN_IF_ERROR(s.Check());
    return s;
  };
  auto parsed = parse();
  if (!parsed.ok()) return While(absl::StrCat("sharding \"", text, "\""), parsed.status());
  return parsed;
}

Share WorkerSharding::TensorShare(const TensorRule& rule, const Family& family,
                                  uint32_t rank) const {
  const uint32_t engine_at = engine_rank(rank);
  const Share attention{tp, engine_at % tp};
  const Share all{engine_ranks(), engine_at};
  switch (rule.block) {
    case Block::kExperts:
    case Block::kStackedExperts:
    case Block::kPackedExperts: {
      const uint32_t parts = engine_ranks() / ep;
      return {parts, engine_at % parts};
    }
    case Block::kSharedExperts:
      // With all three ways, vLLM divides the tokens of shared experts instead of their weights.
      if (engine == Engine::kVllm && family.id == FamilyId::kDeepseekV3 && ep > 1 && tp > 1 &&
          dp > 1) {
        return {};
      }
      return engine == Engine::kVllm ? attention : all;
    case Block::kDenseMlp:
    case Block::kDenseMlpBias:
      return engine == Engine::kVllm ? attention : all;
    default:
      return engine == Engine::kSglang && rule.where == Where::kHead ? all : attention;
  }
}

Share WorkerSharding::ExpertShare(uint32_t rank) const {
  return {ep, engine_rank(rank) / (engine_ranks() / ep)};
}

uint32_t WorkerSharding::FirstLike(uint32_t rank, bool has_experts) const {
  // SGLang cuts dense layers over the whole engine, and experts are never held twice in one.
  return has_experts || engine == Engine::kSglang ? engine_rank(rank) : engine_rank(rank) % tp;
}

absl::Status WorkerSharding::Check() const {
  const uint32_t ranks = engine_ranks();
  if (ranks % ep != 0) return DoesNotDivide("ep", ep, "tp*dp", ranks);
  if (engine == Engine::kVllm && ep != 1 && ep != ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("ep=", ep, ": vLLM deals experts to all tp*dp=", ranks,
                     " ranks of an engine or to none; ep may be 1 or ", ranks));
  }
  if (engine != Engine::kVllm && mxfp4 != Mxfp4Kernel::kTriton) {
    return absl::InvalidArgumentError(absl::StrCat(
        "mxfp4=", Name(mxfp4), " names a kernel of vLLM, and engine is ", Name(engine)));
  }
  return absl::OkStatus();
}

absl::StatusOr<WorkerSharding> WorkerSharding::Parse(absl::string_view text) {
  WorkerSharding s;
  uint32_t engine = 0, uneven = 0, mxfp4 = 0;
  uint64_t seen = 0;
  absl::Status status = ParseFields(text,
                                    {{"tp", &s.tp},
                                     {"dp", &s.dp},
                                     {"ep", &s.ep, /*counts=*/false},
                                     {"replicas", &s.replicas},
                                     {.name = "engine", .number = &engine, .names = kEngines},
                                     {.name = "experts", .number = &uneven, .names = kExpertDeals},
                                     {.name = "mxfp4", .number = &mxfp4, .names = kMxfp4Kernels}},
                                    seen);
  s.engine = static_cast<Engine>(engine);
  s.uneven_experts = uneven != 0;
  s.mxfp4 = static_cast<Mxfp4Kernel>(mxfp4);
  if (status.ok()) status = s.Check();
  if (!status.ok()) return While(absl::StrCat("sharding \"", text, "\""), std::move(status));
  return s;
}

std::string ToString(const TrainerSharding& s) {
  const bool megatron = s.framework == Framework::kMegatron;
  Printer printer;
  if (s.framework != Framework::kFsdp2) {
    printer.AddText(kFrameworks[static_cast<size_t>(s.framework)]);
  }
  printer.Add("fsdp", s.fsdp);
  printer.Add("tp", s.tp);
  printer.Add("pp", s.pp);
  // In Megatron's text these have other defaults.
  if (megatron) {
    printer.Add("dp", s.replicas, 0);
    printer.Add("ep", s.ep);
    printer.Add("etp", s.etp, s.tp);
    printer.Add("vpp", s.vpp);
    if (s.qkv != Qkv::kInterleaved) {
      printer.AddText(absl::StrCat("qkv=", kQkvs[static_cast<size_t>(s.qkv)]));
    }
  } else {
    printer.Add("replicas", s.replicas);
    printer.Add("ep", s.ep);
  }
  if (!s.stages.empty()) printer.AddText(absl::StrCat("stages=", absl::StrJoin(s.stages, "+")));
  if (s.uneven_experts) printer.AddText("experts=uneven");
  if (s.original_params) printer.AddText("params=original");
  return printer.Finish();
}

std::string ToString(const WorkerSharding& s) {
  Printer printer;
  printer.Add("tp", s.tp);
  printer.Add("dp", s.dp);
  printer.Add("ep", s.ep);
  printer.Add("replicas", s.replicas);
  if (s.engine != Engine::kVllm) printer.AddText(absl::StrCat("engine=", Name(s.engine)));
  if (s.uneven_experts) printer.AddText("experts=uneven");
  if (s.mxfp4 != Mxfp4Kernel::kTriton) printer.AddText(absl::StrCat("mxfp4=", Name(s.mxfp4)));
  return printer.Finish();
}

}  // namespace waybill
