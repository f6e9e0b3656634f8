// SPDX-License-Identifier: Apache-2.0

#include "capi/context.h"

#include <memory>
#include <nlohmann/json.hpp>

#include "capi/call.h"
#include "capi/struct_size.h"
#include "core/device/device.h"
#include "core/fabric/verbs/survey.h"
#include "core/host/examine_host.h"

namespace waybill::capi {
namespace {

nlohmann::json DescribeRdma() {
  const absl::StatusOr<std::vector<SurveyedPort>> ports = SurveyRdma(std::nullopt);
  if (!ports.ok()) return {{"available", false}, {"reason", std::string(ports.status().message())}};
  nlohmann::json list = nlohmann::json::array();
  bool available = false;
  for (const SurveyedPort& port : *ports) {
    available = available || port.usable.ok();
    list.push_back(
        {{"name", port.name},
         {"link_layer", port.link_layer},
         {"software", port.software},
         {"mtu_bytes", port.mtu_bytes},
         {"bytes_per_second", port.bytes_per_second},
         {"numa_node", port.numa_node},
         {"usable", port.usable.ok()},
         {"reason", port.usable.ok() ? port.chosen_reason : std::string(port.usable.message())}});
  }
  return {{"available", available}, {"ports", list}};
}

nlohmann::json DescribeGpu() {
  const absl::Status gpu = FindGpu();
  nlohmann::json json = {{"available", gpu.ok()}};
  if (!gpu.ok()) json["reason"] = std::string(gpu.message());
  return json;
}

}  // namespace
}  // namespace waybill::capi

using waybill::capi::Call;
using waybill::capi::CheckOutput;
using waybill::capi::Context;
using waybill::capi::Find;

waybill_status_t waybill_context_create(const waybill_context_options_t* options,
                                        waybill_context_t** out_context, waybill_error_t** error) {
  return Call("create a context", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_context, "out_context"));
    waybill_context_options_t read{};
    if (options != nullptr) {
      WAYBILL_ASSIGN_OR_RETURN(read, waybill::capi::ReadStruct(options, "options"));
    }
    *out_context =
        waybill::capi::MakeHandle(std::make_shared<Context>(read.log_sink, read.log_user));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_context_describe(const waybill_context_t* context,
                                          waybill_blob_t** out_json, waybill_error_t** error) {
  return Call("describe this host", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_json, "out_json"));
    WAYBILL_RETURN_IF_ERROR(Find<Context>(context, "context").status());
    const nlohmann::json json = {{"version", waybill_version()},
                                 {"fabrics",
                                  {{"verbs", waybill::capi::DescribeRdma()},
                                   {"tcp", {{"available", true}}},
                                   {"local", {{"available", true}}}}},
                                 {"gpu", waybill::capi::DescribeGpu()}};
    *out_json = waybill::capi::MakeHandle(std::make_shared<waybill::capi::Blob>(json.dump()));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_context_examine(const waybill_context_t* context,
                                         waybill_blob_t** out_json, waybill_error_t** error) {
  return Call("examine this host", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_json, "out_json"));
    WAYBILL_RETURN_IF_ERROR(Find<Context>(context, "context").status());
    constexpr uint16_t kControlPort = 7070;
    *out_json = waybill::capi::MakeHandle(std::make_shared<waybill::capi::Blob>(
        waybill::FindingsToJson(waybill::ExamineThisHost(std::nullopt, "", kControlPort))));
    return absl::OkStatus();
  });
}

void waybill_context_destroy(waybill_context_t* context) {
  waybill::capi::DestroyObject<Context>(context);
}
