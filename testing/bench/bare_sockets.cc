// SPDX-License-Identifier: Apache-2.0

// Sends memory from one process to another over a TCP connection of the loopback device, and does
// nothing else: what an update of one tensor over `tcp` would take if the job around it took no
// time.
//
//     bazel run -c opt //testing/bench:bare_sockets -- --megabytes 512
//
// The sender hands a MiB at a time to the socket, and the receiver takes a MiB at a time from it,
// straight into its final place. Each computes the digest of the MiB that it has just moved, unless
// --no-digests is given. Prints JSON: for each round the seconds from the first byte sent until the
// sender has heard that the last one is there, and the processor seconds of both processes.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/time/time.h"
#include "kernels/digest.h"
#include "tools/waybill/observe/process_usage.h"

namespace waybill {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
// The receiver is woken for so many bytes: faster than a MiB, and no slower than 64 KiB or 1 byte.
constexpr size_t kWakeBytes = 256 << 10;

struct Options {
  uint64_t megabytes = 512;
  uint32_t rounds = 5;
  bool digests = true;
};

[[noreturn]] void Die(const char* what) {
  std::perror(what);
  std::_Exit(1);
}

double CpuSeconds() { return absl::ToDoubleSeconds(ProcessCpu()); }

// The receiver sends this after each round.
struct Report {
  double cpu_seconds = 0;
  uint64_t sum = 0;  // The sum of the values of the leaves.
};

void SendAll(int socket, const void* data, size_t size_bytes) {
  const char* at = static_cast<const char*>(data);
  while (size_bytes > 0) {
    const ssize_t sent = send(socket, at, size_bytes, MSG_NOSIGNAL);
    if (sent <= 0) Die("bare_sockets: send");
    at += sent;
    size_bytes -= static_cast<size_t>(sent);
  }
}

void ReceiveAll(int socket, void* data, size_t size_bytes) {
  char* at = static_cast<char*>(data);
  while (size_bytes > 0) {
    // It is poll() that waits: recv() would wait for as much again after what it has taken.
    const int enough = static_cast<int>(std::min(size_bytes, kWakeBytes));
    pollfd readable = {socket, POLLIN, 0};
    if (setsockopt(socket, SOL_SOCKET, SO_RCVLOWAT, &enough, sizeof(enough)) != 0 ||
        poll(&readable, 1, 30'000) != 1) {
      Die("bare_sockets: poll");
    }
    const ssize_t received = recv(socket, at, size_bytes, MSG_DONTWAIT);
    if (received <= 0) Die("bare_sockets: recv");
    at += received;
    size_bytes -= static_cast<size_t>(received);
  }
}

// Calls move(data, size_bytes) for each piece, and returns the sum of their digests' leaves.
template <class Move>
uint64_t MoveAll(const Options& options, std::vector<std::byte>& memory, const Move& move) {
  uint64_t sum = 0;
  for (size_t at = 0; at < memory.size(); at += kPieceBytes) {
    const size_t size_bytes = std::min(kPieceBytes, memory.size() - at);
    move(&memory[at], size_bytes);
    if (!options.digests) continue;
    sum += kernels::LeafSum(&memory[at], size_bytes, at / kernels::kLeafBytes);
  }
  return sum;
}

void Receive(const Options& options, int socket) {
  std::vector<std::byte> memory(options.megabytes * 1'000'000);
  for (uint32_t round = 0; round <= options.rounds; ++round) {
    const double cpu_before = CpuSeconds();
    Report report;
    report.sum = MoveAll(options, memory, [&](std::byte* data, size_t size_bytes) {
      ReceiveAll(socket, data, size_bytes);
    });
    report.cpu_seconds = CpuSeconds() - cpu_before;
    SendAll(socket, &report, sizeof(report));
  }
}

nlohmann::json Send(const Options& options, int socket) {
  std::vector<std::byte> memory(options.megabytes * 1'000'000, std::byte{1});
  nlohmann::json result = {{"bytes", memory.size()}};
  for (uint32_t round = 0; round <= options.rounds; ++round) {
    const double cpu_before = CpuSeconds();
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t sum = MoveAll(options, memory, [&](std::byte* data, size_t size_bytes) {
      SendAll(socket, data, size_bytes);
    });
    Report report;
    ReceiveAll(socket, &report, sizeof(report));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    if (report.sum != sum) {
      std::cerr << "bare_sockets: the receiver's digest is not the sender's\n";
      std::exit(1);
    }
    if (round == 0) continue;  // The first one warms the connection up.
    result["seconds"].push_back(took.count());
    result["cpu_seconds"].push_back(CpuSeconds() - cpu_before + report.cpu_seconds);
  }
  return result;
}

int Run(int argc, char** argv) {
  Options options;
  CLI::App app("Sends memory over a TCP connection, and does nothing else");
  app.add_option("--megabytes", options.megabytes, "what is sent, in 10^6 bytes")
      ->capture_default_str();
  app.add_option("--rounds", options.rounds, "how often")->capture_default_str();
  app.add_flag("!--no-digests", options.digests, "compute no digests");
  CLI11_PARSE(app, argc, argv);

  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, any, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, any, &length) != 0) {
    Die("bare_sockets: listen");
  }
  const pid_t receiver = fork();
  if (receiver < 0) Die("bare_sockets: fork");
  if (receiver == 0) {
    const int accepted = accept(listener, nullptr, nullptr);
    if (accepted < 0) Die("bare_sockets: accept");
    Receive(options, accepted);
    std::_Exit(0);
  }
  const int connected = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(connected, any, length) != 0) Die("bare_sockets: connect");
  const nlohmann::json result = Send(options, connected);
  waitpid(receiver, nullptr, 0);
  std::cout << result.dump() << std::endl;
  return 0;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Run(argc, argv); }
