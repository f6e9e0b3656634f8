// SPDX-License-Identifier: Apache-2.0

// Reads the YAML description of a cluster: the model, both shardings, the machines and the network.
// examples/clusters/README.md lists the keys.
#ifndef WAYBILL_TOOLS_WAYBILL_DESCRIBED_JOB_CLUSTER_FILE_H_
#define WAYBILL_TOOLS_WAYBILL_DESCRIBED_JOB_CLUSTER_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/assignment.h"
#include "core/protocol/update.h"
#include "core/simulate/hardware.h"

namespace waybill {

// What the ranks of a side hold: a sharding of the model, or manifests.
struct Side {
  std::string sharding;                // As core/layout/sharding.h reads it.
  std::vector<std::string> manifests;  // Files with encoded manifests, in the order of ranks.
  uint32_t replicas = 1;               // The number of times that each manifest is held.
  // Where the file says it, for errors: `cluster.yaml:4: key "trainers.sharding"`. Empty if it is
  // not from a file.
  std::string place;

  // Returns the sharding, or such as "manifests=8,replicas=4".
  std::string Describe() const;
};

struct ClusterFile {
  std::string name;

  // The model of the shardings. Both are empty if both sides have manifests.
  std::string model;       // A synthetic model; empty if `checkpoint` is not.
  std::string checkpoint;  // A Hugging Face directory.
  std::optional<int64_t> layers;
  std::string model_place;  // As Side::place.

  Side trainers;
  Side workers;
  std::string format;
  std::string dtype;
  std::string format_place;  // As Side::place: that of the format, or of the dtype.
  Mode mode = Mode::kShadow;
  bool digests = true;
  bool images = false;
  std::optional<double> changed;  // As simulate::SimulateOptions::changed.
  Relays relays = Relays::kWherePredictedFaster;
  simulate::Hardware hardware;

  // Returns the model for reports; empty if there is none.
  const std::string& model_name() const { return model.empty() ? checkpoint : model; }
};

// `path` is for errors, which name the file, the line, the key, what was found and what is
// accepted.
//
// kInvalidArgument: not YAML; a key that is unknown, missing or given twice; a value that is not
// accepted.
absl::StatusOr<ClusterFile> ParseClusterFile(absl::string_view text, const std::string& path);

// kNotFound: there is no such file. Otherwise as above.
absl::StatusOr<ClusterFile> ReadClusterFile(const std::string& path);

// The built-in descriptions, by their names: those of examples/clusters/.
//
// kInvalidArgument: no such case; the message lists them.
absl::StatusOr<ClusterFile> FindCase(absl::string_view name);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_DESCRIBED_JOB_CLUSTER_FILE_H_
