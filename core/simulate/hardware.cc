// SPDX-License-Identifier: Apache-2.0

#include "core/simulate/hardware.h"

#include "absl/strings/str_cat.h"

namespace waybill::simulate {
namespace {

absl::Status CheckAbove0(absl::string_view whose, absl::string_view name, double value) {
  if (value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(whose, ": ", name, " is ", value, "; it must be above 0"));
}

absl::Status CheckMachine(absl::string_view whose, const Machine& machine) {
  if (machine.ranks_per_host == 0) {
    return absl::InvalidArgumentError(absl::StrCat(whose, ": a host has at least 1 rank, not 0"));
  }
  if (machine.nics_per_host > 0 && machine.nics_per_host < machine.ranks_per_host) {
    return absl::InvalidArgumentError(absl::StrCat(
        whose, ": a host has ", machine.nics_per_host, " NICs for ", machine.ranks_per_host,
        " ranks; it needs at least one for each, or none (TCP)"));
  }
  const std::pair<absl::string_view, double> rates[] = {{"nic", machine.nic},
                                                        {"pcie", machine.pcie},
                                                        {"nvlink", machine.nvlink},
                                                        {"copy", machine.rates.copy},
                                                        {"transpose", machine.rates.transpose},
                                                        {"cast", machine.rates.cast},
                                                        {"quantise", machine.rates.quantise},
                                                        {"digest", machine.rates.digest}};
  for (const auto& [name, rate] : rates) {
    if (absl::Status status = CheckAbove0(whose, name, rate); !status.ok()) return status;
  }
  if (machine.threads == 0) {
    return absl::InvalidArgumentError(absl::StrCat(whose, ": threads is 0; it must be above 0"));
  }
  if (machine.ring_bytes < (1 << 20)) {
    return absl::InvalidArgumentError(absl::StrCat(whose, ": the ring has ", machine.ring_bytes,
                                                   " bytes; it needs at least 1048576"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string SharedRackOf(const Hardware& hardware, Role role, uint32_t rank) {
  const Network& network = hardware.network;
  if (!network.shared_racks || network.hosts_per_rack == 0 || hardware.one_host) return "";
  const Machine& machine = role == Role::kTrainer ? hardware.trainers : hardware.workers;
  return absl::StrCat("rack ", rank / machine.ranks_per_host / network.hosts_per_rack);
}

absl::Status CheckHardware(const Hardware& hardware, uint32_t trainers, uint32_t workers) {
  if (absl::Status s = CheckMachine("trainers", hardware.trainers); !s.ok()) return s;
  if (absl::Status s = CheckMachine("workers", hardware.workers); !s.ok()) return s;
  const Network& network = hardware.network;
  const std::pair<absl::string_view, double> numbers[] = {
      {"efficiency", network.efficiency},
      {"incast_efficiency", network.incast_efficiency},
      {"tcp_send", network.tcp_send},
      {"tcp_receive", network.tcp_receive}};
  for (const auto& [name, number] : numbers) {
    if (absl::Status status = CheckAbove0("network", name, number); !status.ok()) return status;
  }
  if (network.oversubscription < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "network: oversubscription is ", network.oversubscription, "; it must be at least 1"));
  }
  if (network.shared_racks && network.hosts_per_rack == 0) {
    return absl::InvalidArgumentError(
        "network: hosts_per_rack is 0; shared racks need at least 1 host");
  }
  for (const Straggler& straggler : hardware.stragglers) {
    const uint32_t ranks = straggler.rank.role == Role::kTrainer ? trainers : workers;
    if (straggler.rank.rank >= ranks || straggler.slowdown < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("straggler ", ToString(straggler.rank), " with slowdown ",
                       straggler.slowdown, ": the job has ", ranks, " ", Name(straggler.rank.role),
                       "s, and slowdown is at least 1"));
    }
  }
  return absl::OkStatus();
}

}  // namespace waybill::simulate
