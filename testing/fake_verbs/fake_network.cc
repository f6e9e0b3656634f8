// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_verbs/fake_network.h"

#include <gtest/gtest.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace waybill::fake_verbs {

FakeNetwork::~FakeNetwork() {
  const std::vector<std::string> leaks = Leaks();
  if (!leaks.empty()) ADD_FAILURE() << "left behind:\n" << absl::StrJoin(leaks, "\n");
  const std::vector<std::string> misuses = TakeMisuses();
  if (!misuses.empty()) ADD_FAILURE() << "misused:\n" << absl::StrJoin(misuses, "\n");
}

FakeHost& FakeNetwork::Host(const std::string& name) {
  std::unique_ptr<FakeHost>& host = hosts_[name];
  if (host == nullptr) host = std::make_unique<FakeHost>(&wire_);
  return *host;
}

Wire::End FakeNetwork::EndOf(const PortName& name) {
  return {&Host(name.host).device(name.device), name.port};
}

void FakeNetwork::Cut(const PortName& a, const PortName& b) {
  const std::lock_guard<std::mutex> lock(wire_.mutex());
  wire_.Cut(EndOf(a), EndOf(b));
}

void FakeNetwork::Heal(const PortName& a, const PortName& b) {
  const std::lock_guard<std::mutex> lock(wire_.mutex());
  wire_.Heal(EndOf(a), EndOf(b));
}

void FakeNetwork::DropLonger(const PortName& a, const PortName& b, uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(wire_.mutex());
  wire_.DropLonger(EndOf(a), EndOf(b), bytes);
}

absl::Time FakeNetwork::now() const {
  const std::lock_guard<std::mutex> lock(wire_.mutex());
  return absl::UnixEpoch() + wire_.spent();
}

void FakeNetwork::Step() {
  const std::lock_guard<std::mutex> lock(wire_.mutex());
  wire_.Tick();
}

std::vector<std::string> FakeNetwork::TakeMisuses() {
  const std::lock_guard<std::mutex> lock(wire_.mutex());
  return wire_.TakeMisuses();
}

std::vector<std::string> FakeNetwork::Leaks() const {
  const std::lock_guard<std::mutex> lock(wire_.mutex());
  std::vector<std::string> leaks;
  for (const auto& device : wire_.devices()) {
    const DeviceCounts c = device->counts();
    if (c.contexts + c.registrations + c.queue_pairs + c.completion_queues == 0) continue;
    leaks.push_back(absl::StrCat(device->name, ": ", c.contexts, " contexts, ", c.registrations,
                                 " registrations, ", c.queue_pairs, " queue pairs, ",
                                 c.completion_queues, " completion queues"));
  }
  return leaks;
}

}  // namespace waybill::fake_verbs
