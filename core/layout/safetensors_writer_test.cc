// SPDX-License-Identifier: Apache-2.0

#include "core/layout/safetensors_writer.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include "core/layout/numbered_checkpoint.h"
#include "core/layout/safetensors.h"

namespace waybill {
namespace {

std::vector<CheckpointTensor> TwoTensors() {
  return {{.name = "a", .shape = {3}}, {.name = "b", .shape = {100, 100}}};
}

TEST(WriteSafetensors, WhatIsReadIsWhatWasWritten) {
  const Numbered numbered(TwoTensors());
  const std::string path = FreshDirectory("files") + "/x.safetensors";
  ASSERT_TRUE(WriteSafetensors(path, numbered.tensors(), Durability::kSynced).ok());
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(file->tensors()[i].name, numbered.tensors()[i].name);
    EXPECT_EQ(file->tensors()[i].shape, numbered.tensors()[i].shape);
    EXPECT_EQ(file->tensors()[i].data, numbered.tensors()[i].data);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(file->tensors()[i].data.data()) % 4, 0u);
  }
}

TEST(WriteSafetensors, AsksForBytesPieceByPiece) {
  const CheckpointTensor tensor{.name = "x", .dtype = Dtype::kU8, .shape = {(9 << 20) + 5}};
  const std::string path = FreshDirectory("files") + "/x.safetensors";
  uint64_t expected = 0;
  const auto bytes = [&](const CheckpointTensor& of, uint64_t offset_bytes,
                         absl::Span<std::byte> out) {
    EXPECT_EQ(of.name, "x");
    EXPECT_EQ(offset_bytes, expected);
    EXPECT_EQ(offset_bytes % 8, 0u);
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::byte>((offset_bytes + i) % 251);
    expected += out.size();
  };
  ASSERT_TRUE(WriteSafetensors(path, {tensor}, Durability::kCached, bytes).ok());
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  for (size_t i = 0; i < file->tensors()[0].data.size(); ++i) {
    ASSERT_EQ(file->tensors()[0].data[i], static_cast<std::byte>(i % 251)) << i;
  }
}

TEST(WriteSafetensors, WantsAsManyBytesAsTheShapeNeeds) {
  const Numbered numbered(TwoTensors());
  std::vector<CheckpointTensor> tensors = numbered.tensors();
  tensors[1].data.remove_suffix(1);
  const std::string path = FreshDirectory("files") + "/x.safetensors";
  EXPECT_EQ(WriteSafetensors(path, tensors, Durability::kCached).message(),
            absl::StrCat("write \"", path,
                         "\": tensor \"b\": [100, 100] of F32 needs 40000 bytes, given are 39999"));
  tensors[1] = tensors[0];
  EXPECT_EQ(std::string(WriteSafetensors(path, tensors, Durability::kCached).message()),
            absl::StrCat("write \"", path, "\": tensor \"a\": it is given twice"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

// A limit for the rest of a scope.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FileSizeLimit() { setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

TEST(WriteSafetensors, WritesToNoLinkThatSomebodyHasPutThere) {
  const Numbered numbered(TwoTensors());
  const std::string directory = FreshDirectory("files"), path = directory + "/x.safetensors";
  WriteFile(directory + "/other", "another's");
  std::filesystem::create_symlink(directory + "/other", path + ".part");
  EXPECT_TRUE(WriteSafetensors(path, numbered.tensors(), Durability::kCached).ok());
  EXPECT_EQ(ReadFile(directory + "/other"), "another's");
  EXPECT_EQ(SafetensorsFile::Open(path)->tensors().size(), 2u);
}

TEST(WriteSafetensors, NamesTheHeaderThatDidNotFit) {
  const Numbered numbered(TwoTensors());
  const std::string path = FreshDirectory("files") + "/x.safetensors";
  absl::Status status;
  {
    const FileSizeLimit limit(100);
    status = WriteSafetensors(path, numbered.tensors(), Durability::kCached);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat("write \"", path,
                         "\": the header (120 bytes): write: File too large (errno 27) after "
                         "100 bytes of the file; RLIMIT_FSIZE is 100 bytes"));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(WriteSafetensors, NamesTheTensorThatDidNotFit) {
  const Numbered numbered(TwoTensors());
  const std::string path = FreshDirectory("files") + "/x.safetensors";
  WriteFile(path, "what was there before");
  absl::Status status;
  {
    const FileSizeLimit limit(4096);
    status = WriteSafetensors(path, numbered.tensors(), Durability::kCached);
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat("write \"", path,
                         "\": tensor \"b\" (40000 bytes): write: File too large (errno 27) after "
                         "4096 bytes of the file; RLIMIT_FSIZE is 4096 bytes"));
  EXPECT_FALSE(std::filesystem::exists(path + ".part"));
  EXPECT_EQ(ReadFile(path), "what was there before");
}

TEST(WriteSafetensors, NamesADirectoryThatIsNotThere) {
  const std::string path = FreshDirectory("files") + "/none/x.safetensors";
  const absl::Status status = WriteSafetensors(path, {}, Durability::kCached);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(std::string(status.message()),
            absl::StrCat("write \"", path,
                         "\": open: No such file or directory (errno 2) after 0 "
                         "bytes of the file"));
}

TEST(WriteCheckpoint, CutsAtTheSizeAndWritesAnIndex) {
  const Numbered numbered(
      {{.name = "a", .shape = {2}}, {.name = "b", .shape = {2}}, {.name = "c", .shape = {9}}});
  const std::string directory = FreshDirectory("files") + "/new";
  ASSERT_TRUE(WriteCheckpoint(directory, "{}", numbered.tensors(), 16, Durability::kCached).ok());
  EXPECT_EQ(
      SafetensorsFile::Open(directory + "/model-00001-of-00002.safetensors")->tensors().size(), 2u);
  EXPECT_EQ(
      SafetensorsFile::Open(directory + "/model-00002-of-00002.safetensors")->tensors().size(), 1u);
  EXPECT_EQ(ReadFile(directory + "/config.json"), "{}");
  EXPECT_EQ(ReadFile(directory + "/model.safetensors.index.json"),
            "{\n \"metadata\": {\n  \"total_size\": 52\n },\n \"weight_map\": {\n"
            "  \"a\": \"model-00001-of-00002.safetensors\",\n"
            "  \"b\": \"model-00001-of-00002.safetensors\",\n"
            "  \"c\": \"model-00002-of-00002.safetensors\"\n }\n}\n");
}

TEST(WriteCheckpoint, DoesNotMixTwoInOneDirectory) {
  const Numbered numbered(TwoTensors());
  const std::string directory = FreshDirectory("files");
  ASSERT_TRUE(
      WriteCheckpoint(directory, "{}", numbered.tensors(), 1 << 20, Durability::kCached).ok());
  const absl::Status again =
      WriteCheckpoint(directory, "{}", numbered.tensors(), 16, Durability::kCached);
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(std::string(again.message()),
            absl::StrCat("write checkpoint \"", directory, "\": it has model.safetensors"));
}

}  // namespace
}  // namespace waybill
