// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/http_server.h"

#include <civetweb.h>

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "core/base/status.h"

namespace waybill {
namespace {

// As many clients as may be slow at a time while others are still answered at once.
constexpr char kThreads[] = "16";
constexpr char kTimeoutMs[] = "5000";  // For a whole request, and for each write of an answer.

void Answer(mg_connection* connection, int code, const Resource& resource) {
  const mg_request_info& request = *mg_get_request_info(connection);
  const std::string text = resource.text();
  const std::string length = absl::StrCat(text.size());
  mg_response_header_start(connection, code);
  const std::pair<const char*, const char*> headers[] = {{"Content-Type", resource.type.c_str()},
                                                         {"Content-Length", length.c_str()},
                                                         {"Cache-Control", "no-store"},
                                                         {"X-Content-Type-Options", "nosniff"},
                                                         {"X-Frame-Options", "DENY"},
                                                         {"Connection", "close"}};
  for (const auto& [name, value] : headers) mg_response_header_add(connection, name, value, -1);
  mg_response_header_send(connection);
  const bool head = absl::string_view(request.request_method) == "HEAD";
  if (!head) mg_write(connection, text.data(), text.size());
}

class ServerOfCivetweb final : public HttpServer {
 public:
  ServerOfCivetweb(net::HostPort address, std::vector<Resource> resources)
      : address_(std::move(address)), resources_(std::move(resources)) {
    const auto add_path = [](std::string* all, const Resource& resource) {
      all->append(resource.path);
    };
    const std::string paths = absl::StrJoin(resources_, " ", add_path);
    nothing_.text = [said = absl::StrCat("here are ", paths, "\n")] { return said; };
  }

  ~ServerOfCivetweb() override {
    if (context_ != nullptr) mg_stop(context_);
  }

  absl::Status Listen() {
    const std::string address = net::ToString(address_);
    const char* options[] = {"listening_ports",    address.c_str(), "num_threads", kThreads,
                             "request_timeout_ms", kTimeoutMs,      nullptr};
    mg_callbacks callbacks{};
    // Clients that go away are not the operator's trouble.
    callbacks.log_message = [](const mg_connection*, const char*) { return 1; };
    context_ = mg_start(&callbacks, this, options);
    if (context_ == nullptr) return absl::UnavailableError("the server cannot be started");
    mg_set_request_handler(context_, "**", &ServerOfCivetweb::Handle, this);
    mg_server_port port{};
    if (mg_get_server_ports(context_, 1, &port) == 1) {
      address_.port = static_cast<uint16_t>(port.port);
    }
    return absl::OkStatus();
  }

  std::string address() const override { return net::ToString(address_); }

 private:
  // Returns the code that was answered.
  static int Handle(mg_connection* connection, void* server) {
    const auto& own = *static_cast<const ServerOfCivetweb*>(server);
    const mg_request_info& request = *mg_get_request_info(connection);
    const absl::string_view method = request.request_method;
    if (method != "GET" && method != "HEAD") {
      Answer(connection, 405, own.nothing_);
      return 405;
    }
    for (const Resource& resource : own.resources_) {
      if (resource.path != request.local_uri) continue;
      Answer(connection, 200, resource);
      return 200;
    }
    Answer(connection, 404, own.nothing_);
    return 404;
  }

  net::HostPort address_;
  const std::vector<Resource> resources_;
  Resource nothing_ = {.type = "text/plain; charset=utf-8"};
  mg_context* context_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const net::HostPort& address,
                                                              std::vector<Resource> resources) {
  // civetweb does not say why it cannot listen, so this asks the system first.
  WAYBILL_RETURN_IF_ERROR(net::Listen(address).status());
  auto server = std::make_unique<ServerOfCivetweb>(address, std::move(resources));
  WAYBILL_RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace waybill
