// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/doctor/line_channel.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "core/base/json_text.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/net/tcp_socket.h"

namespace waybill {
namespace {

constexpr size_t kMostLineBytes = 1 << 20;

constexpr int kMostSecondsOfSilence = 10;

}  // namespace

std::string TextOf(const nlohmann::json& message, const char* field) {
  const auto found = message.find(field);
  return found != message.end() && found->is_string() ? found->get<std::string>() : "";
}

LineChannel::LineChannel(UniqueFd socket) : socket_(std::move(socket)) {
  (void)net::SetKeepAlive(socket_.get(), kMostSecondsOfSilence);  // Else a lost host is waited for.
}

absl::Status LineChannel::Say(const nlohmann::json& message) {
  const std::string line = JsonText(message) + "\n";
  for (size_t sent = 0; sent < line.size();) {
    WAYBILL_ASSIGN_OR_RETURN(
        const size_t now,
        net::Send(socket_.get(),
                  {reinterpret_cast<const std::byte*>(line.data()) + sent, line.size() - sent}));
    sent += now;
    pollfd room{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
    if (now == 0 && poll(&room, 1, /*timeout=*/5000) != 1) {
      return absl::DeadlineExceededError("the other end reads nothing");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<nlohmann::json> LineChannel::Hear(absl::Time deadline) {
  while (true) {
    WAYBILL_ASSIGN_OR_RETURN(std::optional<nlohmann::json> message, HearNow());
    if (message && message->contains("error")) {
      return absl::UnavailableError(absl::StrCat("the other end: ", TextOf(*message, "error")));
    }
    if (message) return *std::move(message);
    const int64_t left = absl::ToInt64Milliseconds(deadline - SteadyNow());
    if (left <= 0) return absl::DeadlineExceededError("the other end does not answer");
    pollfd ready{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    poll(&ready, 1, static_cast<int>(std::min<int64_t>(left, 1000)));
  }
}

absl::StatusOr<std::optional<nlohmann::json>> LineChannel::HearNow() {
  std::array<std::byte, 4096> buffer;
  while (received_.find('\n') == std::string::npos) {
    WAYBILL_ASSIGN_OR_RETURN(const size_t size,
                             net::Receive(socket_.get(), absl::MakeSpan(buffer)));
    if (size == 0) return std::nullopt;
    received_.append(reinterpret_cast<const char*>(buffer.data()), size);
    if (received_.size() > kMostLineBytes) return absl::DataLossError("a line without an end");
  }
  const size_t end = received_.find('\n');
  auto message = nlohmann::json::parse(received_.substr(0, end), nullptr, false);
  received_.erase(0, end + 1);
  if (!message.is_object()) return absl::DataLossError("the other end is no waybill doctor");
  return message;
}

}  // namespace waybill
