// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/page/page.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace waybill {
namespace {

TEST(Page, ANameThatIsAMarkOfThePageChangesOnlyItsData) {
  const std::string plain = MakePage({{"name", "rollout"}});
  for (const std::string name : {"/*STYLE*/", "/*DATA*/", "/*SCRIPT*/", "</script>", "<!--"}) {
    std::string text = nlohmann::json{{"name", name}}.dump();
    if (const size_t at = text.find('<'); at != std::string::npos) text.replace(at, 1, "\\u003c");
    std::string wanted = plain;
    const std::string before = R"({"name":"rollout"})";
    wanted.replace(wanted.find(before), before.size(), text);
    EXPECT_EQ(MakePage({{"name", name}}), wanted) << name;
  }
}

TEST(Page, TheFileIsWrittenInOnePieceAndFollowsNoLink) {
  const std::string path = testing::TempDir() + "page.html";
  const std::string target = testing::TempDir() + "target";
  std::ofstream(target) << "keep";
  std::filesystem::remove(path + ".part");
  std::filesystem::create_symlink(target, path + ".part");
  ASSERT_EQ(WritePage(path, {{"name", "x"}}).message(), "");
  EXPECT_EQ(std::filesystem::file_size(path), MakePage({{"name", "x"}}).size());
  EXPECT_EQ(std::filesystem::file_size(target), 4);
}

}  // namespace
}  // namespace waybill
