// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/import_table.h"

#include <gtest/gtest.h>

namespace waybill {
namespace {

constexpr LaneId kLane{1}, kOther{2};

TEST(ImportTable, AnImportDiesWithItsLane) {
  ImportTable<uint64_t> imports;
  const RemoteRegionId first = imports.Add(kLane, 10);
  const RemoteRegionId second = imports.Add(kOther, 20);
  imports.ForgetLane(kLane);
  EXPECT_EQ(imports.Find(first).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*imports.Find(second))->target, 20u);
  EXPECT_EQ(imports.size(), 1u);
  EXPECT_NE(imports.Add(kLane, 30), first);
}

TEST(ImportTable, AnImportThatIsRemovedIsReturnedOnce) {
  ImportTable<uint64_t> imports;
  const RemoteRegionId id = imports.Add(kLane, 10);
  const RemoteRegionId other = imports.Add(kLane, 20);
  const auto removed = imports.Remove(id);
  ASSERT_TRUE(removed.ok());
  EXPECT_EQ(removed->lane, kLane);
  EXPECT_EQ(removed->target, 10u);
  EXPECT_EQ(imports.Remove(id).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*imports.Find(other))->target, 20u);
  imports.ForgetLane(kLane);
  EXPECT_EQ(imports.size(), 0u);
}

TEST(ImportTable, DoesNotGrowWithEpochs) {
  ImportTable<uint64_t> imports;
  for (uint32_t epoch = 1; epoch <= 100; ++epoch) {
    for (uint64_t region = 0; region < 10; ++region) imports.Add(LaneId{epoch}, region);
    imports.ForgetLane(LaneId{epoch});
  }
  EXPECT_EQ(imports.size(), 0u);
}

TEST(ImportTable, AWriteGoesByTheLaneOfItsImport) {
  ImportTable<uint64_t> imports;
  const RemoteRegionId id = imports.Add(kLane, 10);
  EXPECT_EQ(**imports.FindOn(kLane, id), 10u);
  EXPECT_EQ(imports.FindOn(kOther, id).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(imports.FindOn(kLane, RemoteRegionId::kNone).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ImportTable, VisitsTheImportsOfOneLane) {
  ImportTable<uint64_t> imports;
  const RemoteRegionId first = imports.Add(kLane, 10);
  const RemoteRegionId second = imports.Add(kOther, 20);
  imports.ForEachOn(kLane, [](uint64_t& target) { ++target; });
  EXPECT_EQ((*imports.Find(first))->target, 11u);
  EXPECT_EQ((*imports.Find(second))->target, 20u);
}

}  // namespace
}  // namespace waybill
