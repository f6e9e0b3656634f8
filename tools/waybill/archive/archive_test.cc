// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/archive/archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/layout/checkpoint.h"

namespace waybill {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

CheckpointTensor Tensor(const std::string& name, int64_t elements) {
  return {.name = name, .dtype = Dtype::kBf16, .shape = {elements}};
}

std::vector<std::string> NamesOf(const std::vector<CheckpointTensor>& part) {
  std::vector<std::string> names;
  for (const CheckpointTensor& tensor : part) names.push_back(tensor.name);
  return names;
}

TEST(DealTensors, GivesEachPartAboutTheSameWhateverTheOrder) {
  std::vector<CheckpointTensor> tensors = {Tensor("a", 10), Tensor("b", 40), Tensor("c", 20),
                                           Tensor("d", 10)};
  const auto dealt = DealTensors(tensors, 2);
  EXPECT_THAT(NamesOf(dealt[0]), ElementsAre("b"));
  EXPECT_THAT(NamesOf(dealt[1]), ElementsAre("c", "a", "d"));
  std::reverse(tensors.begin(), tensors.end());
  const auto again = DealTensors(tensors, 2);
  EXPECT_EQ(NamesOf(again[0]), NamesOf(dealt[0]));
  EXPECT_EQ(NamesOf(again[1]), NamesOf(dealt[1]));
}

TEST(DealTensors, LeavesPartsEmptyIfThereAreTooFew) {
  const auto dealt = DealTensors({Tensor("a", 1)}, 3);
  EXPECT_EQ(dealt[0].size() + dealt[1].size() + dealt[2].size(), 1u);
}

class ArchiveTest : public testing::Test {
 protected:
  ArchiveTest() : folder_(fs::path(testing::TempDir()) / "archive") {
    fs::remove_all(folder_);
    for (size_t p = 0; p < parts_.size(); ++p) {
      parts_[p] = {Tensor(absl::StrCat("w", p), 4)};
      parts_[p][0].data = absl::MakeConstSpan(bytes_).subspan(8 * p, 8);
    }
  }

  Archive Open(const std::string& others = "") { return *Archive::Open(folder_.string(), others); }
  // Writes the bytes of a version, which are all its number.
  absl::StatusOr<bool> Write(const Archive& archive, uint64_t version, uint32_t part) {
    std::fill(bytes_.begin(), bytes_.end(), static_cast<std::byte>(version));
    return archive.Write(version, part, parts_);
  }
  void WriteWhole(const Archive& archive, uint64_t version) {
    EXPECT_FALSE(*Write(archive, version, 1));
    EXPECT_TRUE(*Write(archive, version, 0));
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.insert(entry.path().filename().string());
    }
    return names;
  }

  const fs::path folder_;
  std::vector<std::byte> bytes_ = std::vector<std::byte>(16);
  std::vector<std::vector<CheckpointTensor>> parts_{2};
};

TEST_F(ArchiveTest, AVersionIsThereOnceItsLastPartIs) {
  const Archive archive = Open();
  EXPECT_THAT(*archive.Versions(), ElementsAre());
  EXPECT_FALSE(*Write(archive, 7, 0));
  EXPECT_THAT(*archive.Versions(), ElementsAre());
  EXPECT_THAT(Names(), UnorderedElementsAre("version-7.part"));
  EXPECT_TRUE(*Write(archive, 7, 1));
  EXPECT_THAT(*archive.Versions(), ElementsAre(7));
  EXPECT_THAT(Names(), UnorderedElementsAre("version-7", "newest"));
}

TEST_F(ArchiveTest, AVersionIsACheckpointAndTheNewestHasALink) {
  const Archive archive = Open();
  for (const uint64_t version : {9, 10}) {
    WriteWhole(archive, version);
    for (const std::string& folder : {archive.FolderOf(version), (folder_ / "newest").string()}) {
      const auto checkpoint = Checkpoint::Open(folder);
      ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
      ASSERT_EQ(checkpoint->tensors().size(), 2u);
      for (const CheckpointTensor& tensor : checkpoint->tensors()) {
        EXPECT_THAT(tensor.data, testing::Each(static_cast<std::byte>(version))) << tensor.name;
      }
    }
  }
}

TEST_F(ArchiveTest, OfTwoThatSeeTheLastPartOneIsToldThatTheVersionIsWhole) {
  const Archive archive = Open();
  for (uint64_t version = 1; version <= 50; ++version) {
    bool whole[2] = {};
    std::thread other([&] { whole[1] = *archive.Write(version, 1, parts_); });
    whole[0] = *archive.Write(version, 0, parts_);
    other.join();
    EXPECT_NE(whole[0], whole[1]) << version;
    ASSERT_TRUE(archive.Keep(1).ok());
  }
  EXPECT_THAT(Names(), UnorderedElementsAre("version-50", "newest"));
}

TEST_F(ArchiveTest, FilesWithoutWeightsGoIntoEachVersion) {
  const fs::path model = fs::path(testing::TempDir()) / "model";
  fs::remove_all(model);
  fs::create_directories(model / "onnx");
  for (const char* name : {"tokenizer.json", "model-00009-of-00009.safetensors",
                           "model.safetensors.index.json", "pytorch_model.bin"}) {
    std::ofstream(model / name) << "{}";
  }
  const Archive archive = Open(model.string());
  WriteWhole(archive, 3);
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(archive.FolderOf(3))) {
    names.insert(entry.path().filename().string());
  }
  EXPECT_THAT(names, UnorderedElementsAre("tokenizer.json", "model.safetensors.index.json",
                                          "model-00001-of-00002.safetensors",
                                          "model-00002-of-00002.safetensors"));
}

TEST_F(ArchiveTest, KeepsTheNewestAndNoPartsOfOlderOnes) {
  const Archive archive = Open();
  for (const uint64_t version : {2, 9, 10}) WriteWhole(archive, version);
  EXPECT_FALSE(*Write(archive, 8, 0));   // Never finished.
  EXPECT_FALSE(*Write(archive, 11, 0));  // Going on.
  std::ofstream(folder_ / "notes") << "of somebody";
  ASSERT_TRUE(archive.Keep(2).ok());
  EXPECT_THAT(Names(), UnorderedElementsAre("version-9", "version-10", "version-11.part", "newest",
                                            "notes"));
  ASSERT_TRUE(archive.Keep(0).ok());
  EXPECT_THAT(*archive.Versions(), ElementsAre(9, 10));
}

TEST_F(ArchiveTest, WhatIsNoVersionIsNotTakenForOne) {
  const Archive archive = Open();
  for (const char* name : {"version-", "version-x", "version-07", "version-1.old", "version--1"}) {
    fs::create_directories(folder_ / name);
  }
  EXPECT_THAT(*archive.Versions(), ElementsAre());
}

TEST_F(ArchiveTest, PartsThatAnotherJobHasLeftAreNotTaken) {
  WriteWhole(Open(), 3);
  EXPECT_FALSE(*Write(Open(), 4, 1));
  const Archive archive = Open();
  ASSERT_TRUE(archive.RemoveUnfinished().ok());
  EXPECT_FALSE(*Write(archive, 4, 0));
  EXPECT_THAT(*archive.Versions(), ElementsAre(3));
  EXPECT_TRUE(*Write(archive, 4, 1));
  EXPECT_THAT(*archive.Versions(), ElementsAre(3, 4));
}

TEST_F(ArchiveTest, RefusesFoldersThatAreNone) {
  std::ofstream(folder_) << "a file";
  EXPECT_THAT(std::string(Archive::Open(folder_.string(), "").status().message()),
              HasSubstr("archive"));
  EXPECT_THAT(std::string(Archive::Open(testing::TempDir(), "/no/such/model").status().message()),
              HasSubstr("list \"/no/such/model\": No such file or directory"));
}

}  // namespace
}  // namespace waybill
