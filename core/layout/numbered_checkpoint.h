// SPDX-License-Identifier: Apache-2.0

// For tests: checkpoints whose element k, counted over all tensors, holds the number k.
#ifndef WAYBILL_CORE_LAYOUT_NUMBERED_CHECKPOINT_H_
#define WAYBILL_CORE_LAYOUT_NUMBERED_CHECKPOINT_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/layout/checkpoint_tensor.h"
#include "core/tensor/box.h"

namespace waybill {

// A folder of the running test, empty.
inline std::string FreshDirectory(absl::string_view name) {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string path =
      absl::StrCat(testing::TempDir(), "/", info->test_suite_name(), ".", info->name(), ".", name);
  for (char& c : path) c = c == '/' && &c > &path[testing::TempDir().size()] ? '_' : c;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void WriteFile(const std::string& path, absl::string_view text) {
  std::ofstream(path, std::ios::binary)
      .write(text.data(), static_cast<std::ptrdiff_t>(text.size()));
}

inline int64_t ElementCount(const CheckpointTensor& tensor) {
  return Box::Whole(tensor.shape).element_count();
}

// Owns the numbers, as F32: exact up to 2^24.
class Numbered {
 public:
  explicit Numbered(std::vector<CheckpointTensor> tensors, int64_t first = 1)
      : tensors_(std::move(tensors)) {
    int64_t next = first;
    for (CheckpointTensor& tensor : tensors_) {
      first_[tensor.name] = next;
      tensor.dtype = Dtype::kF32;
      auto& numbers = numbers_.emplace_back(static_cast<size_t>(ElementCount(tensor)));
      for (float& number : numbers) number = static_cast<float>(next++);
      tensor.data = {reinterpret_cast<const std::byte*>(numbers.data()), numbers.size() * 4};
    }
  }

  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  int64_t first(absl::string_view tensor) const { return first_.at(tensor); }

 private:
  std::vector<CheckpointTensor> tensors_;
  std::vector<std::vector<float>> numbers_;
  absl::flat_hash_map<std::string, int64_t> first_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_LAYOUT_NUMBERED_CHECKPOINT_H_
