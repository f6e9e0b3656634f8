// SPDX-License-Identifier: Apache-2.0

// Asks an HTTP server, as a scraper does.
#ifndef WAYBILL_TESTING_BENCH_HTTP_GET_H_
#define WAYBILL_TESTING_BENCH_HTTP_GET_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "core/net/tcp_socket.h"

namespace waybill {

// Returns the number of bytes of the answer. Waits until the server has closed the connection.
absl::StatusOr<size_t> HttpGet(const net::HostPort& server, const std::string& path);

}  // namespace waybill

#endif  // WAYBILL_TESTING_BENCH_HTTP_GET_H_
