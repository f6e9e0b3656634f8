// SPDX-License-Identifier: Apache-2.0

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "capi/call.h"
#include "capi/manifest.h"
#include "capi/struct_size.h"
#include "core/plan/explain.h"
#include "core/plan/planner.h"
#include "core/tensor/manifest_check.h"

namespace waybill::capi {
namespace {

// Immutable.
class PlanObject : public Object {
 public:
  using Handle = waybill_plan_t;
  static constexpr Kind kKind = Kind::kPlan;

  PlanObject(Plan made, HeldBytes bytes) : plan(std::move(made)), held(std::move(bytes)) {}

  const Plan plan;
  const HeldBytes held;
};

absl::StatusOr<std::vector<Manifest>> CopyManifests(const waybill_manifest_t* const* handles,
                                                    uint32_t count, const char* name, Holes holes) {
  if (handles == nullptr && count > 0) {
    return absl::InvalidArgumentError(absl::StrCat(name, "s is NULL"));
  }
  std::vector<Manifest> manifests;
  for (uint32_t i = 0; i < count; ++i) {
    const std::string what = absl::StrCat(name, " ", i);
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<ManifestObject>(handles[i], what));
    manifests.push_back(found->Copy());
    WAYBILL_RETURN_IF_ERROR(While(what, CheckManifest(manifests.back(), holes)));
  }
  return manifests;
}

// Pointers for the planner, and what it does not remember.
std::vector<const Manifest*> Pointers(const std::vector<Manifest>& manifests,
                                      std::vector<uint64_t>& held) {
  std::vector<const Manifest*> pointers;
  for (const Manifest& manifest : manifests) {
    pointers.push_back(&manifest);
    held.push_back(manifest.total_bytes());
  }
  return pointers;
}

absl::StatusOr<std::string> Explain(const PlanObject& plan, const char* format) {
  const absl::string_view name = format == nullptr ? "" : format;
  if (name == "text" || name.empty()) {
    return absl::StrFormat("plan %016x\n\n", plan.plan.hash()) +
           ExplainAsTable(plan.plan, plan.held);
  }
  if (name == "json") return ExplainAsJson(plan.plan, plan.held, RoutesToo::kNo);
  if (name == "routes") return ExplainAsJson(plan.plan, plan.held, RoutesToo::kYes);
  return absl::InvalidArgumentError(
      absl::StrCat("format \"", name, "\" is not one of text, json, routes"));
}

}  // namespace
}  // namespace waybill::capi

using waybill::capi::Call;
using waybill::capi::CheckOutput;
using waybill::capi::Find;
using waybill::capi::MakeHandle;
using waybill::capi::PlanObject;

waybill_status_t waybill_plan_build(const waybill_plan_options_t* options,
                                    waybill_plan_t** out_plan, waybill_error_t** error) {
  return Call("build a plan", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_plan, "out_plan"));
    WAYBILL_ASSIGN_OR_RETURN(const auto read, waybill::capi::ReadStruct(options, "options"));
    WAYBILL_ASSIGN_OR_RETURN(const auto trainers,
                             waybill::capi::CopyManifests(read.trainers, read.trainer_count,
                                                          "trainer", waybill::Holes::kAllowed));
    WAYBILL_ASSIGN_OR_RETURN(const auto workers,
                             waybill::capi::CopyManifests(read.workers, read.worker_count, "worker",
                                                          waybill::Holes::kRefused));
    waybill::PlanOptions planning;
    if (read.smallest_piece_bytes != 0) planning.smallest_piece_bytes = read.smallest_piece_bytes;
    waybill::HeldBytes held;
    const auto from = waybill::capi::Pointers(trainers, held.senders);
    const auto to = waybill::capi::Pointers(workers, held.receivers);
    WAYBILL_ASSIGN_OR_RETURN(waybill::Plan plan, waybill::MakePlan(from, to, planning));
    *out_plan = MakeHandle(std::make_shared<PlanObject>(std::move(plan), std::move(held)));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_plan_summarise(const waybill_plan_t* plan,
                                        waybill_plan_summary_t* out_summary,
                                        waybill_error_t** error) {
  return Call("summarise a plan", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(waybill::capi::CheckStructSize(out_summary, "out_summary"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<PlanObject>(plan, "plan"));
    const waybill::PlanCounts counts = waybill::CountPlan(found->plan);
    waybill_plan_summary_t summary = WAYBILL_PLAN_SUMMARY_INIT;
    summary.hash = found->plan.hash();
    summary.bytes = found->plan.total_bytes();
    summary.routes = counts.routes;
    summary.writes = counts.writes;
    summary.maxima = counts.maxima;
    summary.maxima_messages = counts.maxima_messages;
    summary.busiest_to_bound = found->plan.balance().ratio();
    summary.busiest_to_mean = found->plan.balance().sender_imbalance();
    waybill::capi::WriteStruct(summary, out_summary);
    return absl::OkStatus();
  });
}

waybill_status_t waybill_plan_explain(const waybill_plan_t* plan, const char* format,
                                      waybill_blob_t** out_text, waybill_error_t** error) {
  return Call("explain a plan", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_text, "out_text"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<PlanObject>(plan, "plan"));
    WAYBILL_ASSIGN_OR_RETURN(std::string text, waybill::capi::Explain(*found, format));
    *out_text = MakeHandle(std::make_shared<waybill::capi::Blob>(std::move(text)));
    return absl::OkStatus();
  });
}

void waybill_plan_destroy(waybill_plan_t* plan) { waybill::capi::DestroyObject<PlanObject>(plan); }
