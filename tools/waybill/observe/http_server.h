// SPDX-License-Identifier: Apache-2.0

// Serves texts that are made anew for each request, by HTTP.
#ifndef WAYBILL_TOOLS_WAYBILL_OBSERVE_HTTP_SERVER_H_
#define WAYBILL_TOOLS_WAYBILL_OBSERVE_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/net/tcp_socket.h"

namespace waybill {

struct Resource {
  std::string path;                   // As "/metrics". Any other path is answered with 404.
  std::string type;                   // As "text/plain; charset=utf-8".
  std::function<std::string()> text;  // Called on the server's threads, several at a time.
};

// Answers GET and HEAD from Start() until its end, on threads of its own. A client that reads too
// slowly is dropped.
class HttpServer {
 public:
  // Port 0 takes a free one. kUnavailable: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const net::HostPort& address,
                                                           std::vector<Resource> resources);
  virtual ~HttpServer() = default;

  // Returns the address, as "127.0.0.1:9464".
  virtual std::string address() const = 0;
};

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_OBSERVE_HTTP_SERVER_H_
