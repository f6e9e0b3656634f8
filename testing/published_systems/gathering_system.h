// SPDX-License-Identifier: Apache-2.0

// Two updates that others have measured and published, predicted by the rules of their system.
//
// That system gathers a tensor's shards on all trainers of its mesh (`full_tensor()`), fuses and
// quantises it there, and has one of them write it to each worker, in turn. Tensors that are whole
// on every worker come first; a barrier of all trainers parts them from the experts.
#ifndef WAYBILL_TESTING_PUBLISHED_SYSTEMS_GATHERING_SYSTEM_H_
#define WAYBILL_TESTING_PUBLISHED_SYSTEMS_GATHERING_SYSTEM_H_

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/simulate/hardware.h"

namespace waybill {

// What calls take, as published of Kimi-K2 on one rank. Both cases are predicted with them.
struct PublishedCalls {
  double to_device = 43.7e9;  // H2D, bytes per second: 8.05 GB of weights in 184 ms.
  double full_tensor = 532e-6;
  double fuse = 37e-6;
  double quantise = 137e-6;
  double submit = 23e-6;
  double barrier = 1e-3;  // Of some hundred ranks over Ethernet; our estimate.
};

struct PublishedCase {
  absl::string_view name;
  absl::string_view model;
  double measured_seconds = 0;
  uint32_t trainers = 0;
  uint32_t stages = 1;         // Of the trainers' pipeline.
  uint32_t expert_groups = 1;  // Trainers' expert parallelism: how many parts experts are in.
  uint32_t workers = 0;
  uint32_t expert_ranks = 1;  // Workers' expert parallelism; replicas have the same experts.
  uint32_t layers = 0;        // With experts.
  uint32_t experts = 0;
  // The trainers' tensors in one stage of the pipeline; experts of one layer are stacked. Counted
  // so, Kimi-K2 has the published number: 487.
  uint32_t whole_tensors = 0;      // Those that each worker holds whole.
  uint32_t quantised_tensors = 0;  // Of these.
  uint32_t expert_tensors = 0;
  uint64_t whole_bytes = 0;   // On each worker.
  uint64_t expert_bytes = 0;  // One replica's, all layers and experts.
  bool to_device = false;     // Weights lie in the host's memory before the update.

  uint32_t replicas() const { return workers / expert_ranks; }
};

// "kimi-k2-256-128" and "qwen3-235b-128-32".
absl::Span<const PublishedCase> PublishedCases();
// Returns the case, or null.
const PublishedCase* FindPublishedCase(absl::string_view name);

struct PublishedPrediction {
  double seconds = 0;
  double gather_seconds = 0;  // Of one trainer's calls, one after another.
  uint64_t writes = 0;        // Of one trainer: the most.

  double error(const PublishedCase& of) const { return seconds / of.measured_seconds - 1; }
};

// Predicts the case by the published system's rules.
PublishedPrediction PredictPublished(const PublishedCase& of, const simulate::Hardware& hardware,
                                     const PublishedCalls& calls = {});

// GPUs with a NIC of 400 Gb/s each, eight to a host.
simulate::Hardware PublishedHardware();

}  // namespace waybill

#endif  // WAYBILL_TESTING_PUBLISHED_SYSTEMS_GATHERING_SYSTEM_H_
