// Reads a checkpoint for the check, and for nothing else: on its own, so that a mistake of the
// product's reader is not made twice.
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
  std::string dtype;  // As the file says: "BF16".
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
};

// Immutable; the files stay mapped as long as it lives.
class StoredCheckpoint {
 public:
  static absl::StatusOr<std::unique_ptr<StoredCheckpoint>> Open(const std::string& directory);
  StoredCheckpoint();
  ~StoredCheckpoint();
  StoredCheckpoint(const StoredCheckpoint&) = delete;
  StoredCheckpoint& operator=(const StoredCheckpoint&) = delete;

  // Of config.json; null where there is none.
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
