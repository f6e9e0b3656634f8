// Moves bytes between two processes over the tcp fabric, as the engines do, and prints what it took
// as JSON: tcp_transfer [--lanes N] [--mib N] [--chunk-kib N] [--ring-mib N] [--rounds N].
//
// The sender posts chunks from a ring, and reuses a slot when its post is complete; the receiver
// has all of the bytes in one region. Both sleep in Wait() when there is nothing to do.

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/fabric/fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"

namespace waybill {
namespace {

struct Options {
  uint32_t lanes = 1;
  uint64_t mib = 1024;
  uint64_t chunk_kib = 1024;
  uint64_t ring_mib = 32;
  uint32_t rounds = 1;
};

[[noreturn]] void Die(const std::string& why) {
  std::cerr << "tcp_transfer: " << why << "\n";
  std::exit(1);
}

template <typename T>
T ValueOf(absl::StatusOr<T> value) {
  if (!value.ok()) Die(std::string(value.status().message()));
  return *std::move(value);
}
void Check(const absl::Status& status) {
  if (!status.ok()) Die(std::string(status.message()));
}

// What the control channel is to the engines: lines between the two processes.
class Control {
 public:
  explicit Control(int fd) : fd_(fd) {}

  void Say(absl::string_view line) {
    const std::string text = absl::StrCat(line, "\n");
    if (write(fd_, text.data(), text.size()) != static_cast<ssize_t>(text.size())) Die("write");
  }
  std::string Hear() {
    std::string line;
    for (char c = 0; read(fd_, &c, 1) == 1;) {
      if (c == '\n') return line;
      line.push_back(c);
    }
    Die("the other process is gone");
  }

 private:
  const int fd_;
};

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

class End {
 public:
  End(const Options& options, int control)
      : options_(options), control_(control), fabric_(ValueOf(MakeTcpFabric())) {
    events_.reserve(64);
    for (uint32_t i = 0; i < options.lanes; ++i) {
      lanes_.push_back(ValueOf(fabric_->OpenLane("the other process", "")));
      control_.Say(ValueOf(fabric_->LaneAddress(lanes_.back())));
    }
    for (const LaneId lane : lanes_) Check(fabric_->ConnectLane(lane, control_.Hear()));
    uint32_t connected = 0;
    while (connected < options.lanes) {
      Step();
      for (const FabricEvent& e : events_) {
        connected += e.kind == FabricEvent::Kind::kConnected ? 1 : 0;
      }
    }
  }

  void Receive() {
    const Region region = ValueOf(fabric_->Allocate(options_.mib << 20, "destination"));
    for (const LaneId lane : lanes_) Check(fabric_->Grant(lane, region.id));
    control_.Say(ValueOf(fabric_->Describe(region.id)));
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      const double cpu_before = CpuSeconds();
      control_.Say("ready");
      uint32_t finished = 0;
      while (finished < options_.lanes) {
        Step();
        for (const FabricEvent& e : events_) {
          finished += e.kind == FabricEvent::Kind::kImmediate ? 1 : 0;
        }
      }
      const double cpu = CpuSeconds() - cpu_before;
      for (uint64_t i = 0; i < region.memory.size_bytes; i += 4099) {
        const uint64_t at_source = i % (options_.ring_mib << 20);
        if (region.memory.data[i] != std::byte(at_source * 31 >> 3)) Die("wrong bytes");
      }
      std::memset(region.memory.data, 0, region.memory.size_bytes);
      control_.Say(absl::StrCat(cpu));
    }
    control_.Say(CountsAsJson().dump());
  }

  nlohmann::json Send() {
    const Region ring = ValueOf(fabric_->Allocate(options_.ring_mib << 20, "ring"));
    for (uint64_t i = 0; i < ring.memory.size_bytes; ++i) {
      ring.memory.data[i] = std::byte(i * 31 >> 3);
    }
    const std::string descriptor = control_.Hear();
    std::vector<RemoteRegionId> to;
    while (to.size() < lanes_.size()) {
      const auto imported = fabric_->Import(lanes_[to.size()], descriptor);
      if (imported.ok()) {
        to.push_back(*imported);
      } else {
        Step();
      }
    }
    nlohmann::json rounds = nlohmann::json::array();
    for (uint32_t round = 0; round < options_.rounds; ++round) rounds.push_back(Round(ring, to));
    return {{"bytes", options_.mib << 20},
            {"lanes", options_.lanes},
            {"rounds", std::move(rounds)},
            {"sender", CountsAsJson()},
            {"receiver", nlohmann::json::parse(control_.Hear())}};
  }

 private:
  void Step() {
    fabric_->Wait(absl::Now() + absl::Seconds(30));
    events_.clear();
    fabric_->Poll(events_);
    for (const FabricEvent& e : events_) {
      if (e.kind == FabricEvent::Kind::kFailed) Check(fabric_->LaneStatus(e.lane));
    }
  }

  nlohmann::json Round(const Region& ring, const std::vector<RemoteRegionId>& to) {
    const uint64_t chunk = options_.chunk_kib << 10;
    const uint64_t chunks = (options_.mib << 20) / chunk;
    const uint64_t slots = ring.memory.size_bytes / chunk;
    if (control_.Hear() != "ready") Die("the receiver is not ready");
    const double cpu_before = CpuSeconds();
    const auto begin = std::chrono::steady_clock::now();
    std::vector<bool> done(chunks);
    uint64_t first_open = 0;
    uint64_t posted = 0;
    while (first_open < chunks) {
      for (; posted < chunks && posted < first_open + slots; ++posted) {
        const size_t lane = posted % lanes_.size();
        const bool is_last = posted + lanes_.size() >= chunks;
        Check(fabric_->Post(lanes_[lane],
                            {{{ring.id, posted % slots * chunk, to[lane], posted * chunk, chunk}}},
                            is_last ? std::optional<uint32_t>(1) : std::nullopt, posted));
      }
      Step();
      for (const FabricEvent& e : events_) {
        if (e.kind == FabricEvent::Kind::kComplete) done[e.token] = true;
      }
      while (first_open < chunks && done[first_open]) ++first_open;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const double cpu = CpuSeconds() - cpu_before;
    return {{"seconds", took.count()},
            {"sender_cpu_seconds", cpu},
            {"receiver_cpu_seconds", std::stod(control_.Hear())}};
  }

  nlohmann::json CountsAsJson() const {
    nlohmann::json counts;
    for (const FabricCount& count : fabric_->Counts()) counts[count.name] = count.value;
    return counts;
  }

  const Options options_;
  Control control_;
  std::unique_ptr<Fabric> fabric_;
  std::vector<LaneId> lanes_;
  std::vector<FabricEvent> events_;
};

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Moves bytes between two processes over the tcp fabric.");
  app.add_option("--lanes", options.lanes)->check(CLI::Range(1, 64));
  app.add_option("--mib", options.mib);
  app.add_option("--chunk-kib", options.chunk_kib);
  app.add_option("--ring-mib", options.ring_mib);
  app.add_option("--rounds", options.rounds);
  CLI11_PARSE(app, argc, argv);

  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) Die("socketpair");
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    End(options, sockets[1]).Receive();
    return 0;
  }
  close(sockets[1]);
  std::cout << End(options, sockets[0]).Send() << std::endl;
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Main(argc, argv); }
