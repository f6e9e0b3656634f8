// SPDX-License-Identifier: Apache-2.0

// A safetensors file, from a checkpoint that somebody gave us.
#include <cstring>

#include "core/layout/safetensors.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {
namespace {

std::string File(const std::string& header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file + header + std::string(data_bytes, 'x');
}

}  // namespace

std::vector<std::string> Seeds() {
  return {File(R"({"__metadata__": {"format": "pt"},)"
               R"("a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},)"
               R"("b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},)"
               R"("c": {"dtype": "U8", "shape": [0, 7], "data_offsets": [32, 32]}})",
               32),
          File("{}", 0)};
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::Span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  const auto tensors = waybill::ParseSafetensors(file);
  if (!tensors.ok()) return 0;
  unsigned sum = 0;
  for (const waybill::CheckpointTensor& tensor : *tensors) {
    for (const std::byte b : tensor.data) sum += static_cast<unsigned>(b);
  }
  waybill::fuzz::Require(sum <= 255u * size, "tensors lie in the file, and not in one another");
  return 0;
}
