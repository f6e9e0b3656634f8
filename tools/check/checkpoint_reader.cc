// SPDX-License-Identifier: Apache-2.0

#include "tools/check/checkpoint_reader.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"

namespace waybill::check {

absl::StatusOr<std::unique_ptr<StoredCheckpoint>> StoredCheckpoint::Open(
    const std::string& directory) {
  auto checkpoint = std::make_unique<StoredCheckpoint>();
  if (std::ifstream config(directory + "/config.json"); config) {
    checkpoint->config_ = nlohmann::json::parse(config, nullptr, /*allow_exceptions=*/false);
  }
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".safetensors") {
      WAYBILL_RETURN_IF_ERROR(checkpoint->AddFile(entry.path()));
    }
  }
  if (error) return absl::NotFoundError(absl::StrCat("check: ", directory, ": ", error.message()));
  return checkpoint;
}

StoredCheckpoint::StoredCheckpoint() = default;

StoredCheckpoint::~StoredCheckpoint() {
  for (const auto& [address, size] : mappings_) munmap(address, size);
}

absl::Status StoredCheckpoint::AddFile(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status{};
  if (!fd.valid() || fstat(fd.get(), &status) != 0) {
    return absl::NotFoundError(absl::StrCat("check: ", path, ": ", std::strerror(errno)));
  }
  const auto size = static_cast<size_t>(status.st_size);
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (address == MAP_FAILED) {
    return absl::InternalError(absl::StrCat("check: ", path, ": ", std::strerror(errno)));
  }
  mappings_.emplace_back(address, size);
  const auto* bytes = static_cast<const std::byte*>(address);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes, 8);
  const auto* text = reinterpret_cast<const char*>(bytes + 8);
  const nlohmann::json header = nlohmann::json::parse(text, text + header_bytes);
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__") continue;
    tensors_[name] = {.name = name,
                      .dtype = tensor["dtype"],
                      .shape = tensor["shape"],
                      .data = bytes + 8 + header_bytes + tensor["data_offsets"][0].get<uint64_t>()};
  }
  return absl::OkStatus();
}

const StoredTensor* StoredCheckpoint::Find(const std::string& name) const {
  const auto tensor = tensors_.find(name);
  return tensor == tensors_.end() ? nullptr : &tensor->second;
}

}  // namespace waybill::check
