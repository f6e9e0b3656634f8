// Reads the YAML description of a cluster: the model, both shardings, the machines and the network.
// examples/clusters/README.md lists the keys.
#ifndef WAYBILL_TOOLS_WAYBILL_CLUSTER_FILE_H_
#define WAYBILL_TOOLS_WAYBILL_CLUSTER_FILE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/plan/assignment.h"
#include "core/protocol/update.h"
#include "core/simulate/hardware.h"

namespace waybill {

struct ClusterFile {
  std::string name;
  std::string published;  // A published case to compare with; or empty.

  std::string model;       // A synthetic model; empty if `checkpoint` is not.
  std::string checkpoint;  // A Hugging Face directory.
  std::optional<int64_t> layers;

  // As core/layout/sharding.h reads them, and where they are, for errors: `cluster.yaml:4: key
  // "trainers.sharding"`. Empty if they are not from a file.
  std::string trainers;
  std::string workers;
  std::string trainers_place;
  std::string workers_place;
  std::string format;
  std::string dtype;
  Mode mode = Mode::kShadow;
  bool digests = true;
  Relays relays = Relays::kWherePredictedFaster;
  simulate::Hardware hardware;
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

#endif  // WAYBILL_TOOLS_WAYBILL_CLUSTER_FILE_H_
