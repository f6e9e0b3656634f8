// Moves bytes between two processes over one fabric, as the engines do, and prints what it took as
// JSON: fabric_transfer --fabric tcp|verbs [--lanes N] [--mib N] [--chunk-kib N] [--write-kib N]
// [--ring-mib N] [--rounds N] [--digests] [--nics SENDER,RECEIVER]; with --kills N the receiver is
// killed in the middle of it, N times, and what is printed is how long until its lanes failed.
//
// The sender posts chunks from a ring, and reuses a slot when its post is complete; the receiver
// has all of the bytes in one region. Both sleep in Wait() when there is nothing to do.

#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/fabric/fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "kernels/digest.h"

namespace waybill {
namespace {

struct Options {
  uint32_t lanes = 1;
  uint64_t mib = 1024;
  uint64_t chunk_kib = 1024;
  uint64_t write_kib = 0;  // A chunk is one post of writes of that size; 0: of one.
  uint64_t ring_mib = 32;
  bool digests = false;
  uint32_t kills = 0;  // Instead: how long until the receiver's death is told, so many times.
  std::string fabric = "tcp";
  std::vector<std::string> nics;  // The NICs of the sender and of the receiver.
  uint32_t rounds = 1;
};

[[noreturn]] void Die(const std::string& why) {
  std::cerr << "fabric_transfer: " << why << "\n";
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

// Replaces the control channel of the engines: lines between the two processes.
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
  End(const Options& options, int control, size_t side)
      : options_(options), control_(control), fabric_(Make(options, side)) {
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
      if (options_.digests)
        digest_ += kernels::Digest(region.memory.data, region.memory.size_bytes);
      control_.Say("arrived");
      const double cpu = CpuSeconds() - cpu_before;
      for (uint64_t i = 0; i < region.memory.size_bytes; i += 4099) {
        const uint64_t at_source = i % (options_.ring_mib << 20);
        if (region.memory.data[i] != std::byte(at_source * 31 >> 3)) Die("wrong bytes");
      }
      std::memset(region.memory.data, 0, region.memory.size_bytes);
      control_.Say(absl::StrCat(cpu));
    }
    control_.Say(CountsAsJson().dump());
    (void)control_.Hear();  // Until the sender has heard of every completion.
  }

  // Kills the receiver when half of it has been posted; seconds until the last lane had failed.
  double SendAndKill(pid_t receiver) {
    const auto [ring, to] = Prepare();
    const uint64_t chunk = options_.chunk_kib << 10;
    const uint64_t slots = ring.memory.size_bytes / chunk;
    uint64_t posted = 0, complete = 0;
    size_t failed = 0;
    std::optional<std::chrono::steady_clock::time_point> killed;
    const uint64_t chunks = (options_.mib << 20) / chunk;
    while (failed < lanes_.size()) {
      while (posted - complete < slots && (posted < chunks / 2 || killed)) {
        const size_t lane = posted % lanes_.size();
        const uint64_t at = posted % slots * chunk;
        if (!fabric_
                 ->Post(lanes_[lane], WritesOf(ring, to[lane], at, posted % chunks * chunk, chunk),
                        std::nullopt, posted)
                 .ok()) {
          break;
        }
        ++posted;
      }
      if (posted >= chunks / 2 && !killed) {
        killed = std::chrono::steady_clock::now();
        kill(receiver, SIGKILL);
      }
      fabric_->Wait(absl::Now() + absl::Seconds(30));
      events_.clear();
      fabric_->Poll(events_);
      for (const FabricEvent& e : events_) {
        complete += e.kind == FabricEvent::Kind::kComplete ? 1 : 0;
        failed += e.kind == FabricEvent::Kind::kFailed ? 1 : 0;
      }
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - *killed).count();
  }

  nlohmann::json Send() {
    const auto [ring, to] = Prepare();

    nlohmann::json rounds = nlohmann::json::array();
    for (uint32_t round = 0; round < options_.rounds; ++round) rounds.push_back(Round(ring, to));
    nlohmann::json result = {{"bytes", options_.mib << 20},
                             {"lanes", options_.lanes},
                             {"rounds", std::move(rounds)},
                             {"sender", CountsAsJson()},
                             {"receiver", nlohmann::json::parse(control_.Hear())}};
    control_.Say("done");
    return result;
  }

 private:
  static std::unique_ptr<Fabric> Make(const Options& options, size_t side) {
    if (options.fabric == "tcp") return ValueOf(MakeTcpFabric());
    VerbsOptions verbs;
    if (!options.nics.empty()) verbs.nics = {options.nics[side % options.nics.size()]};
    return ValueOf(MakeVerbsFabric(verbs));
  }

  // The ring, and the receiver's region on each lane.
  std::pair<Region, std::vector<RemoteRegionId>> Prepare() {
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
    if (options_.kills > 0 && control_.Hear() != "ready") Die("the receiver is not ready");
    return {ring, to};
  }

  // A chunk, as so many writes.
  absl::Span<const Write> WritesOf(const Region& ring, RemoteRegionId to, uint64_t source,
                                   uint64_t destination, uint64_t size) {
    const uint64_t each = options_.write_kib == 0 ? size : options_.write_kib << 10;
    writes_.clear();
    for (uint64_t at = 0; at < size; at += each) {
      writes_.push_back({ring.id, source + at, to, destination + at, std::min(each, size - at)});
    }
    return writes_;
  }

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
        const uint64_t at = posted % slots * chunk;
        if (options_.digests) digest_ += kernels::Digest(ring.memory.data + at, chunk);
        const absl::Status status =
            fabric_->Post(lanes_[lane], WritesOf(ring, to[lane], at, posted * chunk, chunk),
                          is_last ? std::optional<uint32_t>(1) : std::nullopt, posted);
        if (absl::IsResourceExhausted(status)) break;
        Check(status);
      }
      Step();
      for (const FabricEvent& e : events_) {
        if (e.kind == FabricEvent::Kind::kComplete) done[e.token] = true;
      }
      while (first_open < chunks && done[first_open]) ++first_open;
    }
    if (control_.Hear() != "arrived") Die("the receiver is lost");
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
  std::vector<Write> writes_;
  uint64_t digest_ = 0;  // So that nothing is left out.
};

// Before a fabric is made, so that every try has fresh processes.
double KillOnce(const Options& options) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) Die("socketpair");
  const pid_t receiver = fork();
  if (receiver == 0) {
    close(sockets[0]);
    End(options, sockets[1], 1).Receive();
    std::exit(0);
  }
  close(sockets[1]);
  double seconds = 0;
  {
    End sender(options, sockets[0], 0);
    seconds = sender.SendAndKill(receiver);
  }
  close(sockets[0]);
  waitpid(receiver, nullptr, 0);
  return seconds;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Moves bytes between two processes over one fabric.");
  app.add_option("--fabric", options.fabric)->check(CLI::IsMember({"tcp", "verbs"}));
  app.add_option("--nics", options.nics, "of the sender, of the receiver")->delimiter(',');
  app.add_option("--write-kib", options.write_kib, "a chunk is one post of writes of that size");
  app.add_option("--kills", options.kills, "kill the receiver, so many times");
  app.add_flag("--digests", options.digests, "both ends take the digest of every byte");
  app.add_option("--lanes", options.lanes)->check(CLI::Range(1, 64));
  app.add_option("--mib", options.mib);
  app.add_option("--chunk-kib", options.chunk_kib);
  app.add_option("--ring-mib", options.ring_mib);
  app.add_option("--rounds", options.rounds);
  CLI11_PARSE(app, argc, argv);

  if (options.kills > 0) {
    nlohmann::json seconds = nlohmann::json::array();
    for (uint32_t i = 0; i < options.kills; ++i) seconds.push_back(KillOnce(options));
    std::cout << nlohmann::json{{"failure_told_seconds", seconds}} << std::endl;
    return 0;
  }
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) Die("socketpair");
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    End(options, sockets[1], 1).Receive();
    return 0;
  }
  close(sockets[1]);
  std::cout << End(options, sockets[0], 0).Send() << std::endl;
  int status = 0;
  return waitpid(child, &status, 0) == child && status == 0 ? 0 : 1;
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Main(argc, argv); }
