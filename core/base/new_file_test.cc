// SPDX-License-Identifier: Apache-2.0

#include "core/base/new_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace waybill {
namespace {

TEST(NewFile, ALinkIsReplacedAndNotFollowed) {
  const std::string target = testing::TempDir() + "new_file_target";
  const std::string path = testing::TempDir() + "new_file";
  std::ofstream(target) << "keep";
  std::filesystem::remove(path);
  std::filesystem::create_symlink(target, path);

  const UniqueFd file = OpenNewFile(path);

  ASSERT_TRUE(file.valid());
  EXPECT_EQ(std::filesystem::file_size(target), 4);
  EXPECT_FALSE(std::filesystem::is_symlink(path));
  struct stat made{};
  ASSERT_EQ(fstat(file.get(), &made), 0);
  EXPECT_EQ(made.st_mode & 0777, 0600);
}

}  // namespace
}  // namespace waybill
