// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "absl/strings/str_cat.h"

namespace waybill {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Manifest Tensors() {
  Manifest manifest;
  for (const char* name : {"embed", "layers.0.up", "layers.0.down", "layers.1.up"}) {
    manifest.AddTensor(name, {4}, Dtype::kBf16);
  }
  manifest.AddAlias("head", 0);
  return manifest;
}

TEST(Selection, TakesTensorsByNameByAliasAndByPattern) {
  const Manifest manifest = Tensors();
  const auto select = [&](std::vector<std::string> tensors) {
    return Selection{.tensors = std::move(tensors)}.SelectIn(manifest, nullptr);
  };
  EXPECT_THAT(select({}), ElementsAre(true, true, true, true));
  EXPECT_THAT(select({"layers.0.down"}), ElementsAre(false, false, true, false));
  EXPECT_THAT(select({"head"}), ElementsAre(true, false, false, false));
  EXPECT_THAT(select({"layers.*.up", "head"}), ElementsAre(true, true, false, true));
  EXPECT_THAT(select({"layers"}), ElementsAre(false, false, false, false));
}

TEST(Selection, NamesWhatTheManifestDoesNotHave) {
  std::vector<std::string> unknown;
  Selection{.tensors = {"embed", "nope", "layers.*", "experts.*"}}.SelectIn(Tensors(), &unknown);
  EXPECT_THAT(unknown, ElementsAre("nope", "experts.*"));
  unknown.clear();
  Selection{}.SelectIn(Tensors(), &unknown);
  EXPECT_THAT(unknown, IsEmpty());
}

TEST(Selection, OfEverythingIsTheDefault) {
  EXPECT_TRUE(Selection{}.everything());
  EXPECT_FALSE(Selection{.tensors = {"*"}}.everything());
  EXPECT_FALSE(Selection{.at_most_ppm = 999'999}.everything());
}

TEST(Selection, HasAFractionAboveZeroAndUpToOne) {
  for (const uint32_t ppm : {1U, 10'000U, Selection::kMillion}) {
    EXPECT_TRUE(Selection{.at_most_ppm = ppm}.Check().ok()) << ppm;
  }
  for (const uint32_t ppm : {0U, Selection::kMillion + 1, ~0U}) {
    EXPECT_EQ(Selection{.at_most_ppm = ppm}.Check().code(), absl::StatusCode::kInvalidArgument)
        << ppm;
  }
}

TEST(Selection, ComposesAnotherNameOfEveryDifferentPast) {
  std::set<uint64_t> names = {0};
  size_t made = 1;
  for (const Selection& selection :
       {Selection{}, Selection{.tensors = {"a"}}, Selection{.tensors = {"b"}},
        Selection{.tensors = {"a", "b"}}, Selection{.at_most_ppm = 1}}) {
    for (const uint64_t version : {1, 2}) {
      for (const uint64_t composition : {0, 1}) {
        names.insert(selection.Compose(version, composition));
        EXPECT_TRUE(names.contains(selection.Compose(version, composition)));
        EXPECT_EQ(names.size(), ++made);
      }
    }
  }
}

}  // namespace
}  // namespace waybill
