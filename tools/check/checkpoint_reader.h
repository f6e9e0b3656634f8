// SPDX-License-Identifier: Apache-2.0

// Reads a checkpoint for the check. It shares no code with the product's reader, so that a bug
// there is found.
#ifndef WAYBILL_TOOLS_CHECK_CHECKPOINT_READER_H_
#define WAYBILL_TOOLS_CHECK_CHECKPOINT_READER_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace waybill::check {

struct StoredTensor {
  std::string name;
  std::string dtype;  // As the file spells it, such as "BF16".
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
};

// Immutable. Keeps the files mapped.
class StoredCheckpoint {
 public:
  static absl::StatusOr<std::unique_ptr<StoredCheckpoint>> Open(const std::string& directory);
  StoredCheckpoint();
  ~StoredCheckpoint();
  StoredCheckpoint(const StoredCheckpoint&) = delete;
  StoredCheckpoint& operator=(const StoredCheckpoint&) = delete;

  // The contents of config.json, or null if there is none.
  const nlohmann::json& config() const { return config_; }
  const StoredTensor* Find(const std::string& name) const;

 private:
  absl::Status AddFile(const std::string& path);

  nlohmann::json config_;
  std::map<std::string, StoredTensor> tensors_;
  std::vector<std::pair<void*, size_t>> mappings_;
};

}  // namespace waybill::check

#endif  // WAYBILL_TOOLS_CHECK_CHECKPOINT_READER_H_
