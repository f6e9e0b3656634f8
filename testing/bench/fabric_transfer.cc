// SPDX-License-Identifier: Apache-2.0

// Moves bytes between two processes over one fabric, as the engines do, and prints what it took as
// JSON: fabric_transfer --fabric tcp|verbs [--lanes N] [--mib N] [--chunk-kib N] [--write-kib N]
// [--ring-mib N] [--rounds N] [--digests] [--nics SENDER,RECEIVER] [--senders N] [--receivers N].
// With --kills N, kills the receiver in the middle of a transfer, N times, and prints how long its
// lanes took to fail.
//
// With several senders or receivers, each sender has lanes to every receiver and deals out its
// bytes among them. All begin each round together, and the first sender prints what it measured.
//
// The sender posts chunks from a ring, and reuses a slot when its post is complete; the receiver
// has all bytes of a sender in one region. Both sleep in Wait() when there is nothing to do.

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
#include "absl/time/time.h"
#include "core/base/steady_now.h"
#include "core/fabric/fabric.h"
#include "core/fabric/tcp/tcp_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "kernels/digest.h"
#include "tools/waybill/observe/process_usage.h"

namespace waybill {
namespace {

struct Options {
  uint32_t lanes = 1;  // The number between each sender and each receiver.
  uint32_t senders = 1;
  uint32_t receivers = 1;
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

double CpuSeconds() { return absl::ToDoubleSeconds(ProcessCpu()); }

class End {
 public:
  // `controls` has a socket to each peer; `index` is the number of this end on its side.
  End(const Options& options, const std::vector<int>& controls, size_t side, uint32_t index)
      : options_(options), index_(index), fabric_(Make(options, side)) {
    events_.reserve(64);
    for (const int control : controls) peers_.emplace_back(control);
    for (Control& peer : peers_) {
      for (uint32_t i = 0; i < options.lanes; ++i) {
        lanes_.push_back(ValueOf(fabric_->OpenLane("the other process", "")));
        peer.Say(ValueOf(fabric_->LaneAddress(lanes_.back())));
      }
    }
    for (size_t i = 0; i < lanes_.size(); ++i) {
      Check(fabric_->ConnectLane(lanes_[i], peers_[i / options.lanes].Hear()));
    }
    size_t connected = 0;
    while (connected < lanes_.size()) {
      Step();
      for (const FabricEvent& e : events_) {
        connected += e.kind == FabricEvent::Kind::kConnected ? 1 : 0;
      }
    }
  }

  void Receive() {
    std::vector<Region> regions;  // By sender.
    for (size_t p = 0; p < peers_.size(); ++p) {
      regions.push_back(ValueOf(fabric_->Allocate(BytesFromEach(), "destination")));
      for (uint32_t i = 0; i < options_.lanes; ++i) {
        Check(fabric_->Grant(lanes_[p * options_.lanes + i], regions[p].id));
      }
      peers_[p].Say(ValueOf(fabric_->Describe(regions[p].id)));
    }
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      const double cpu_before = CpuSeconds();
      for (Control& peer : peers_) peer.Say("ready");
      size_t finished = 0;
      while (finished < lanes_.size()) {
        Step();
        for (const FabricEvent& e : events_) {
          finished += e.kind == FabricEvent::Kind::kImmediate ? 1 : 0;
        }
      }
      for (const Region& region : regions) {
        if (options_.digests)
          digest_ += kernels::Digest(region.memory.data, region.memory.size_bytes);
      }
      for (Control& peer : peers_) peer.Say("arrived");
      const double cpu = CpuSeconds() - cpu_before;
      for (const Region& region : regions) {
        CheckBytes(region);
        std::memset(region.memory.data, 0, region.memory.size_bytes);
      }
      for (Control& peer : peers_) peer.Say(absl::StrCat(cpu));
    }
    for (Control& peer : peers_) peer.Say(CountsAsJson().dump());
    // Until the senders have heard of every completion.
    for (Control& peer : peers_) (void)peer.Hear();
  }

  // Kills the receiver when half of it has been posted; seconds until the last lane had failed.
  double SendAndKill(pid_t receiver) {
    const auto [ring, to] = Prepare();
    const uint64_t chunk = chunk_bytes();
    const uint64_t slots = ring.memory.size_bytes / chunk;
    uint64_t posted = 0, complete = 0;
    size_t failed = 0;
    std::optional<std::chrono::steady_clock::time_point> killed;
    const uint64_t chunks = chunk_count();
    while (failed < lanes_.size()) {
      while (posted - complete < slots && (posted < chunks / 2 || killed)) {
        const size_t lane = posted % lanes_.size();
        const uint64_t at = posted % slots * chunk;
        if (!fabric_
                 ->Post(lanes_[lane], WritesOf(ring, to[lane], at, PlaceOf(posted % chunks), chunk),
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
      fabric_->Wait(SteadyNow() + absl::Seconds(30));
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
                             {"sender", CountsAsJson()}};
    for (Control& peer : peers_) {
      const std::string counts = peer.Hear();
      if (&peer == &peers_.front()) result["receiver"] = nlohmann::json::parse(counts);
    }
    for (Control& peer : peers_) peer.Say("done");
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
      ring.memory.data[i] = PatternAt(i);
    }
    std::vector<std::string> descriptors(peers_.size());
    for (size_t p = 0; p < peers_.size(); ++p) descriptors[p] = peers_[p].Hear();
    std::vector<RemoteRegionId> to;
    while (to.size() < lanes_.size()) {
      const auto imported =
          fabric_->Import(lanes_[to.size()], descriptors[to.size() / options_.lanes]);
      if (imported.ok()) {
        to.push_back(*imported);
      } else {
        Step();
      }
    }
    if (options_.kills > 0) HearFromAll("ready");
    return {ring, to};
  }

  void HearFromAll(absl::string_view line) {
    for (Control& peer : peers_) {
      if (peer.Hear() != line) Die(absl::StrCat("a receiver is not ", line));
    }
  }

  // A sender posts its chunk k on lane k mod LanesOfSender(). A receiver stores the chunks of its
  // lanes one behind the other.
  uint64_t chunk_bytes() const { return options_.chunk_kib << 10; }
  uint64_t chunk_count() const { return (options_.mib << 20) / chunk_bytes(); }
  uint64_t LanesOfSender() const { return uint64_t{options_.lanes} * options_.receivers; }
  uint64_t PlaceOf(uint64_t chunk) const {
    return (chunk / LanesOfSender() * options_.lanes + chunk % options_.lanes) * chunk_bytes();
  }
  uint64_t BytesFromEach() const {
    const uint64_t rows = (chunk_count() + LanesOfSender() - 1) / LanesOfSender();
    return rows * options_.lanes * chunk_bytes();
  }

  static std::byte PatternAt(uint64_t i) { return std::byte(i * 31 >> 3); }

  void CheckBytes(const Region& region) const {
    for (uint64_t chunk = 0; chunk < chunk_count(); ++chunk) {
      if (chunk / options_.lanes % options_.receivers != index_) continue;
      for (uint64_t i = 0; i < chunk_bytes(); i += 4099) {
        const uint64_t at_source = (chunk * chunk_bytes() + i) % (options_.ring_mib << 20);
        if (region.memory.data[PlaceOf(chunk) + i] != PatternAt(at_source)) Die("wrong bytes");
      }
    }
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
    fabric_->Wait(SteadyNow() + absl::Seconds(30));
    events_.clear();
    fabric_->Poll(events_);
    for (const FabricEvent& e : events_) {
      if (e.kind == FabricEvent::Kind::kFailed) Check(fabric_->LaneStatus(e.lane));
    }
  }

  nlohmann::json Round(const Region& ring, const std::vector<RemoteRegionId>& to) {
    const uint64_t chunk = chunk_bytes();
    const uint64_t chunks = chunk_count();
    const uint64_t slots = ring.memory.size_bytes / chunk;
    HearFromAll("ready");
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
            fabric_->Post(lanes_[lane], WritesOf(ring, to[lane], at, PlaceOf(posted), chunk),
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
    HearFromAll("arrived");
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const double cpu = CpuSeconds() - cpu_before;
    double receivers_cpu = 0;
    for (Control& peer : peers_) receivers_cpu += std::stod(peer.Hear());
    return {{"seconds", took.count()},
            {"sender_cpu_seconds", cpu},
            {"receiver_cpu_seconds", receivers_cpu}};
  }

  nlohmann::json CountsAsJson() const {
    nlohmann::json counts;
    for (const FabricCount& count : fabric_->Counts()) counts[count.name] = count.value;
    return counts;
  }

  const Options options_;
  const uint32_t index_;
  std::vector<Control> peers_;
  std::unique_ptr<Fabric> fabric_;
  std::vector<LaneId> lanes_;  // Those to the first peer, then those to the second.
  std::vector<FabricEvent> events_;
  std::vector<Write> writes_;
  uint64_t digest_ = 0;  // So that nothing is left out.
};

// Runs `work` in a child process, which ends with it. Returns the child.
template <class Work>
pid_t InChild(const Work& work) {
  const pid_t child = fork();
  if (child < 0) Die("fork");
  if (child > 0) return child;
  work();
  std::_Exit(0);
}

// Before a fabric is made, so that every try has fresh processes.
double KillOnce(const Options& options) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) Die("socketpair");
  const pid_t receiver = InChild([&] {
    close(sockets[0]);
    End(options, {sockets[1]}, 1, 0).Receive();
  });
  close(sockets[1]);
  double seconds = 0;
  {
    End sender(options, {sockets[0]}, 0, 0);
    seconds = sender.SendAndKill(receiver);
  }
  close(sockets[0]);
  waitpid(receiver, nullptr, 0);
  return seconds;
}

// Every end is a process: the receivers and all senders but the first are children.
int Transfer(const Options& options) {
  // The ends of the connection between each sender and each receiver.
  std::vector<std::vector<int>> of_sender(options.senders), of_receiver(options.receivers);
  for (auto& sender : of_sender) {
    for (auto& receiver : of_receiver) {
      int sockets[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) Die("socketpair");
      sender.push_back(sockets[0]);
      receiver.push_back(sockets[1]);
    }
  }
  // Closes the sockets of all other ends, so that each end notices when a peer dies.
  const auto keep_only = [&](const std::vector<int>& own) {
    for (const auto* side : {&of_sender, &of_receiver}) {
      for (const std::vector<int>& sockets : *side) {
        for (const int socket : sockets) {
          if (std::find(own.begin(), own.end(), socket) == own.end()) close(socket);
        }
      }
    }
  };
  std::vector<pid_t> children;
  const auto run_in_child = [&](const std::vector<int>& own, const auto& end) {
    children.push_back(InChild([&] {
      keep_only(own);
      end();
    }));
  };
  for (uint32_t r = 0; r < options.receivers; ++r) {
    run_in_child(of_receiver[r], [&] { End(options, of_receiver[r], 1, r).Receive(); });
  }
  for (uint32_t s = 1; s < options.senders; ++s) {
    run_in_child(of_sender[s], [&] { (void)End(options, of_sender[s], 0, s).Send(); });
  }
  keep_only(of_sender[0]);
  std::cout << End(options, of_sender[0], 0, 0).Send() << std::endl;
  bool all_well = true;
  for (const pid_t child : children) {
    int status = 0;
    all_well = waitpid(child, &status, 0) == child && status == 0 && all_well;
  }
  return all_well ? 0 : 1;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Moves bytes between two processes over one fabric.");
  app.add_option("--fabric", options.fabric)->check(CLI::IsMember({"tcp", "verbs"}));
  app.add_option("--nics", options.nics, "of the sender, of the receiver")->delimiter(',');
  app.add_option("--write-kib", options.write_kib, "a chunk is one post of writes of that size");
  app.add_option("--kills", options.kills, "kill the receiver, so many times");
  app.add_flag("--digests", options.digests, "both ends take the digest of every byte");
  app.add_option("--lanes", options.lanes, "between a sender and a receiver")
      ->check(CLI::Range(1, 64));
  app.add_option("--senders", options.senders)->check(CLI::Range(1, 64));
  app.add_option("--receivers", options.receivers)->check(CLI::Range(1, 64));
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
  return Transfer(options);
}

}  // namespace
}  // namespace waybill

int main(int argc, char** argv) { return waybill::Main(argc, argv); }
