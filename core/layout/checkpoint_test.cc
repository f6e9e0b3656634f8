// SPDX-License-Identifier: Apache-2.0

#include "core/layout/checkpoint.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/layout/numbered_checkpoint.h"
#include "core/layout/safetensors_writer.h"

namespace waybill {
namespace {

constexpr char kIndex[] = "model.safetensors.index.json";

std::vector<CheckpointTensor> ThreeTensors() {
  return {{.name = "c", .shape = {4}}, {.name = "a", .shape = {2, 2}}, {.name = "b", .shape = {4}}};
}

// Each tensor in a file of its own: c in the first, a in the second, b in the third.
std::string ThreeFiles(const Numbered& numbered) {
  const std::string directory = FreshDirectory("model");
  EXPECT_TRUE(WriteCheckpoint(directory, "", numbered.tensors(), 16, Durability::kCached).ok());
  return directory;
}

TEST(Checkpoint, OpensSeveralFilesByTheirIndex) {
  const Numbered numbered(ThreeTensors());
  const std::string directory = ThreeFiles(numbered);
  // Not in the index: left alone.
  WriteFile(directory + "/consolidated.safetensors", "no such file");
  const auto checkpoint = Checkpoint::Open(directory);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  ASSERT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(checkpoint->tensors()[0].name, "a");
  EXPECT_EQ(checkpoint->tensors()[2].name, "c");
  const CheckpointTensor* b = checkpoint->Find("b");
  ASSERT_NE(b, nullptr);
  float first;
  std::memcpy(&first, b->data.data(), sizeof(first));
  EXPECT_EQ(first, 9);
  EXPECT_EQ(checkpoint->Find("bb"), nullptr);
  EXPECT_EQ(checkpoint->Find("d"), nullptr);
}

TEST(Checkpoint, WithoutConfigItIsGeneric) {
  const auto checkpoint = Checkpoint::Open(ThreeFiles(Numbered(ThreeTensors())));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->config().family, nullptr);
  EXPECT_EQ(checkpoint->config().generic_reason, "there is no config.json");
}

TEST(Checkpoint, WithoutIndexItIsModelOrElseEveryFile) {
  const Numbered numbered(ThreeTensors());
  const std::string directory = ThreeFiles(numbered);
  std::filesystem::remove(absl::StrCat(directory, "/", kIndex));
  const auto all = Checkpoint::Open(directory);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(all->tensors().size(), 3u);
  std::filesystem::rename(directory + "/model-00002-of-00003.safetensors",
                          directory + "/model.safetensors");
  const auto one = Checkpoint::Open(directory);
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_EQ(one->tensors().size(), 1u);
  EXPECT_EQ(one->tensors()[0].name, "a");
}

struct BadCase {
  const char* name;
  std::function<void(const std::string& directory)> spoil;
  const char* message;  // "@" stands for the directory.
};

class CheckpointRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(CheckpointRefusesTest, AndNamesTheFile) {
  const std::string directory = ThreeFiles(Numbered(ThreeTensors()));
  GetParam().spoil(directory);
  const auto checkpoint = Checkpoint::Open(directory);
  std::string message(checkpoint.status().message());
  for (size_t at; (at = message.find(directory)) != std::string::npos;) {
    message.replace(at, directory.size(), "@");
  }
  EXPECT_EQ(message, GetParam().message);
}

void WriteIndex(const std::string& directory, absl::string_view text) {
  WriteFile(absl::StrCat(directory, "/", kIndex), text);
}

constexpr char kFirst[] = "model-00001-of-00003.safetensors";
constexpr char kSecond[] = "model-00002-of-00003.safetensors";
constexpr char kThird[] = "model-00003-of-00003.safetensors";

std::string Index(absl::string_view a, absl::string_view b, absl::string_view c) {
  return absl::StrCat(R"({"weight_map": {"a": ")", a, R"(", "b": ")", b, R"(", "c": ")", c, "\"}}");
}

INSTANTIATE_TEST_SUITE_P(
    Cases, CheckpointRefusesTest,
    testing::Values(
        BadCase{"no_directory", [](const auto& d) { std::filesystem::remove_all(d); },
                "open checkpoint \"@\": No such file or directory"},
        BadCase{"no_tensors",
                [](const auto& d) {
                  std::filesystem::remove_all(d);
                  std::filesystem::create_directory(d);
                },
                "open checkpoint \"@\": no *.safetensors file is there"},
        BadCase{"a_config_that_is_not_json",
                [](const auto& d) { WriteFile(d + "/config.json", "{"); },
                "read \"@/config.json\": config.json: not JSON"},
        BadCase{"an_empty_config", [](const auto& d) { WriteFile(d + "/config.json", ""); },
                "read \"@/config.json\": it cannot be read or is empty"},
        BadCase{"an_index_that_is_not_json", [](const auto& d) { WriteIndex(d, "{\"weight"); },
                "read \"@/model.safetensors.index.json\": not JSON"},
        BadCase{"an_index_with_deep_brackets",
                [](const auto& d) {
                  WriteIndex(d, absl::StrCat(R"({"weight_map": {"a": )", std::string(200000, '['),
                                             std::string(200000, ']'), "}}"));
                },
                "read \"@/model.safetensors.index.json\": brackets are nested more than 64 deep"},
        BadCase{"an_index_without_a_map",
                [](const auto& d) { WriteIndex(d, R"({"weight_map": []})"); },
                "read \"@/model.safetensors.index.json\": not a JSON object with a \"weight_map\" "
                "object"},
        BadCase{"an_index_that_names_a_tensor_twice",
                [](const auto& d) {
                  WriteIndex(d, R"({"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}})");
                },
                "read \"@/model.safetensors.index.json\": \"a\" is there twice"},
        BadCase{
            "an_index_that_leaves_the_directory",
            [](const auto& d) { WriteIndex(d, R"({"weight_map": {"a": "../x.safetensors"}})"); },
            "read \"@/model.safetensors.index.json\": tensor \"a\": \"../x.safetensors\" is "
            "not a name ending with .safetensors"},
        BadCase{"an_index_with_a_number",
                [](const auto& d) { WriteIndex(d, R"({"weight_map": {"a": 1}})"); },
                "read \"@/model.safetensors.index.json\": tensor \"a\": 1 is not a name ending "
                "with .safetensors"},
        BadCase{"an_index_that_names_a_missing_file",
                [](const auto& d) { WriteIndex(d, Index("none.safetensors", kThird, kFirst)); },
                "read \"@/none.safetensors\": open: No such file or directory"},
        BadCase{"an_index_that_names_another_file",
                [](const auto& d) { WriteIndex(d, Index(kThird, kThird, kFirst)); },
                "read \"@/model.safetensors.index.json\": tensor \"a\" is not in "
                "model-00003-of-00003.safetensors as the index says"},
        BadCase{"an_index_that_swaps_two",
                [](const auto& d) { WriteIndex(d, Index(kThird, kSecond, kFirst)); },
                "read \"@/model.safetensors.index.json\": tensor \"a\" is in "
                "model-00002-of-00003.safetensors, the index says "
                "model-00003-of-00003.safetensors"},
        BadCase{"an_index_that_leaves_one_out",
                [](const auto& d) {
                  WriteIndex(d, absl::StrCat(R"({"weight_map": {"x": ")", kFirst, "\"}}"));
                },
                "read \"@/model.safetensors.index.json\": tensor \"c\" is in "
                "model-00001-of-00003.safetensors, the index does not name it"},
        BadCase{"a_tensor_in_two_files",
                [](const auto& d) {
                  std::filesystem::remove(absl::StrCat(d, "/", kIndex));
                  std::filesystem::copy_file(d + "/" + kFirst, d + "/more.safetensors");
                },
                "open checkpoint \"@\": tensor \"c\" is in both model-00001-of-00003.safetensors "
                "and more.safetensors"},
        BadCase{"a_truncated_file",
                [](const auto& d) { std::filesystem::resize_file(d + "/" + kSecond, 87); },
                "read \"@/model-00002-of-00003.safetensors\": tensor \"a\" at bytes [0, 16): the "
                "file has 15 bytes of data"}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace waybill
