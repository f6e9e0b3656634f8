// SPDX-License-Identifier: Apache-2.0

// A folder that stands for /sys and /proc, for tests.
#ifndef WAYBILL_CORE_HOST_FAKE_SYS_H_
#define WAYBILL_CORE_HOST_FAKE_SYS_H_

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/string_view.h"

namespace waybill {

class FakeSys {
 public:
  FakeSys() : root_(testing::TempDir() + "host_XXXXXX") {
    EXPECT_NE(mkdtemp(root_.data()), nullptr);
  }
  ~FakeSys() { std::filesystem::remove_all(root_); }
  FakeSys(const FakeSys&) = delete;
  FakeSys& operator=(const FakeSys&) = delete;

  const std::string& root() const { return root_; }

  void File(const std::string& path, absl::string_view text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path, std::ios::binary) << text << "\n";
  }
  // Puts a PCI device at `path` below /sys/devices, and the kernel's link to it at `link`.
  void Device(const std::string& path, const std::string& link) const {
    std::filesystem::create_directories(root_ + "/sys/devices/" + path);
    std::filesystem::create_directories(std::filesystem::path(root_ + link).parent_path());
    std::filesystem::create_directory_symlink(root_ + "/sys/devices/" + path, root_ + link);
  }

 private:
  std::string root_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_HOST_FAKE_SYS_H_
