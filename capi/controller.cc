// SPDX-License-Identifier: Apache-2.0

#include "core/control/controller.h"

#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "capi/call.h"
#include "capi/context.h"
#include "capi/deadline.h"
#include "capi/manifest.h"
#include "capi/struct_size.h"
#include "core/control/ask_controller.h"
#include "core/control/status_json.h"

namespace waybill::capi {
namespace {

class ControllerObject : public Object {
 public:
  using Handle = waybill_controller_t;
  static constexpr Kind kKind = Kind::kController;

  ControllerObject(std::shared_ptr<Context> context, std::unique_ptr<Controller> made)
      : context_(std::move(context)), controller_(std::move(made)) {}

  // Whoever is still asking it something ends it; else this call does.
  void Close() override {
    const std::lock_guard lock(mutex_);
    controller_.reset();
  }

  // Null once it is closed.
  std::shared_ptr<Controller> controller() const {
    const std::lock_guard lock(mutex_);
    return controller_;
  }

 private:
  const std::shared_ptr<Context> context_;
  mutable std::mutex mutex_;
  std::shared_ptr<Controller> controller_;
};

absl::StatusOr<std::shared_ptr<Controller>> FindController(const waybill_controller_t* handle) {
  WAYBILL_ASSIGN_OR_RETURN(const auto found, Find<ControllerObject>(handle, "controller"));
  std::shared_ptr<Controller> controller = found->controller();
  if (controller != nullptr) return controller;
  return absl::InvalidArgumentError("controller is no such handle: it was destroyed");
}

absl::StatusOr<ControllerOptions> ReadOptions(const waybill_controller_options_t* given) {
  WAYBILL_ASSIGN_OR_RETURN(const auto read, ReadStruct(given, "options"));
  ControllerOptions options;
  WAYBILL_ASSIGN_OR_RETURN(const std::string listen, Text(read.listen, "listen"));
  WAYBILL_ASSIGN_OR_RETURN(const std::string job, Text(read.job, "job"));
  if (!listen.empty()) options.listen = listen;
  if (!job.empty()) options.coordinator.job = job;
  WAYBILL_ASSIGN_OR_RETURN(options.token, Text(read.token, "token"));
  WAYBILL_ASSIGN_OR_RETURN(options.state, Text(read.state, "state"));
  WAYBILL_ASSIGN_OR_RETURN(const std::string required,
                           Text(read.required_groups, "required_groups"));
  for (const absl::string_view group : absl::StrSplit(required, ',', absl::SkipEmpty())) {
    options.coordinator.required_groups.emplace(group);
  }
  if (read.join_timeout_ns < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("join_timeout_ns is ", read.join_timeout_ns, ", less than 0"));
  }
  if (read.join_timeout_ns > 0) {
    options.coordinator.join_timeout = absl::Nanoseconds(read.join_timeout_ns);
  }
  return options;
}

// What is asked of a controller anywhere.
struct Question {
  std::string address;
  std::string token;
  absl::Duration left;
};

absl::StatusOr<Question> ReadQuestion(waybill_context_t* context, const char* address,
                                      const char* token, int64_t deadline_ns,
                                      waybill_blob_t** out_json) {
  Question question;
  WAYBILL_RETURN_IF_ERROR(CheckOutput(out_json, "out_json"));
  WAYBILL_RETURN_IF_ERROR(Find<Context>(context, "context").status());
  WAYBILL_ASSIGN_OR_RETURN(question.address, Text(address, "address"));
  if (question.address.empty()) question.address = "127.0.0.1:7070";
  WAYBILL_ASSIGN_OR_RETURN(question.token, Text(token, "token"));
  WAYBILL_ASSIGN_OR_RETURN(question.left, TimeLeft(deadline_ns, absl::Seconds(5)));
  return question;
}

}  // namespace
}  // namespace waybill::capi

using waybill::capi::Blob;
using waybill::capi::Call;
using waybill::capi::CheckOutput;
using waybill::capi::Context;
using waybill::capi::ControllerObject;
using waybill::capi::Find;
using waybill::capi::MakeHandle;
using waybill::capi::Question;
using waybill::capi::ReadQuestion;

waybill_status_t waybill_controller_start(waybill_context_t* context,
                                          const waybill_controller_options_t* options,
                                          waybill_controller_t** out_controller,
                                          waybill_error_t** error) {
  return Call("start a controller", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_controller, "out_controller"));
    WAYBILL_ASSIGN_OR_RETURN(auto parent, Find<Context>(context, "context"));
    WAYBILL_ASSIGN_OR_RETURN(const auto read, waybill::capi::ReadOptions(options));
    WAYBILL_ASSIGN_OR_RETURN(auto controller, waybill::Controller::Start(read));
    *out_controller =
        MakeHandle(std::make_shared<ControllerObject>(std::move(parent), std::move(controller)));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_controller_address(const waybill_controller_t* controller,
                                            waybill_blob_t** out_address, waybill_error_t** error) {
  return Call("ask a controller for its address", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_address, "out_address"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, waybill::capi::FindController(controller));
    *out_address = MakeHandle(std::make_shared<Blob>(found->address()));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_controller_status(const waybill_controller_t* controller,
                                           waybill_blob_t** out_json, waybill_error_t** error) {
  return Call("ask a controller for its status", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(CheckOutput(out_json, "out_json"));
    WAYBILL_ASSIGN_OR_RETURN(const auto found, waybill::capi::FindController(controller));
    *out_json = MakeHandle(std::make_shared<Blob>(waybill::StatusToJson(found->status())));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_controller_query(waybill_context_t* context, const char* address,
                                          const char* token, int64_t deadline_ns,
                                          waybill_blob_t** out_json, waybill_error_t** error) {
  return Call("ask a controller for its status", error, [&]() -> absl::Status {
    WAYBILL_ASSIGN_OR_RETURN(const Question question,
                             ReadQuestion(context, address, token, deadline_ns, out_json));
    WAYBILL_ASSIGN_OR_RETURN(const auto status,
                             waybill::FetchStatus(question.address, question.token, question.left));
    *out_json = MakeHandle(std::make_shared<Blob>(waybill::StatusToJson(status)));
    return absl::OkStatus();
  });
}

waybill_status_t waybill_job_tensors(waybill_context_t* context, const char* address,
                                     const char* token, int64_t deadline_ns,
                                     waybill_blob_t** out_json, waybill_error_t** error) {
  return Call("ask a controller for the job's tensors", error, [&]() -> absl::Status {
    WAYBILL_ASSIGN_OR_RETURN(const Question question,
                             ReadQuestion(context, address, token, deadline_ns, out_json));
    WAYBILL_ASSIGN_OR_RETURN(
        const auto tensors, waybill::FetchTensors(question.address, question.token, question.left));
    *out_json = MakeHandle(std::make_shared<Blob>(waybill::capi::TensorsToJson(tensors)));
    return absl::OkStatus();
  });
}

void waybill_controller_destroy(waybill_controller_t* controller) {
  waybill::capi::DestroyObject<ControllerObject>(controller);
}
