// SPDX-License-Identifier: Apache-2.0

#include "core/layout/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "core/layout/numbered_checkpoint.h"

namespace waybill {
namespace {

std::string File(absl::string_view header, size_t data_bytes) {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  absl::StrAppend(&file, header);
  for (size_t i = 0; i < data_bytes; ++i) file.push_back(static_cast<char>(i));
  return file;
}

// In memory of exactly its size, so that the sanitizer sees a read behind the end.
absl::StatusOr<std::vector<CheckpointTensor>> Parse(absl::string_view file) {
  const auto exact = std::make_unique<std::byte[]>(file.size());
  std::memcpy(exact.get(), file.data(), file.size());
  auto tensors = ParseSafetensors({exact.get(), file.size()});
  if (tensors.ok()) {
    for (const CheckpointTensor& tensor : *tensors) {
      EXPECT_GE(tensor.data.data(), exact.get());
      EXPECT_LE(tensor.data.data() + tensor.data.size(), exact.get() + file.size());
      EXPECT_EQ(tensor.data.size(),
                static_cast<uint64_t>(ElementCount(tensor)) * SizeBytes(tensor.dtype));
    }
  }
  return tensors;
}

constexpr char kGood[] = R"({"__metadata__":{"format":"pt"},)"
                         R"("b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
                         R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                         R"("none":{"shape":[0,7],"dtype":"I64","data_offsets":[16,16]}})";

TEST(ParseSafetensors, TellsNamesShapesAndBytes) {
  const std::string file = File(kGood, 16);
  const auto tensors =
      ParseSafetensors({reinterpret_cast<const std::byte*>(file.data()), file.size()});
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 3u);
  EXPECT_EQ((*tensors)[0].name, "a");
  EXPECT_EQ((*tensors)[0].shape, std::vector<int64_t>());
  EXPECT_EQ((*tensors)[1].name, "b");
  EXPECT_EQ((*tensors)[1].dtype, Dtype::kBf16);
  EXPECT_EQ((*tensors)[1].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ((*tensors)[1].data.size(), 12u);
  EXPECT_EQ((*tensors)[1].data[0], std::byte{4});
  EXPECT_EQ((*tensors)[2].shape, (std::vector<int64_t>{0, 7}));
}

TEST(ParseSafetensors, TakesNoTensorsAndSpacesAround) {
  EXPECT_TRUE(Parse(File("{}", 0)).ok());
  EXPECT_TRUE(Parse(File(" {}    ", 0)).ok());
}

struct BadCase {
  const char* name;
  std::string file;
  const char* message;
};

class SafetensorsRefusesTest : public testing::TestWithParam<BadCase> {};

TEST_P(SafetensorsRefusesTest, AndSaysWhat) {
  const auto tensors = Parse(GetParam().file);
  EXPECT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(tensors.status().message(), GetParam().message);
}

std::string Entry(absl::string_view fields) { return absl::StrCat("{\"a\":{", fields, "}}"); }

std::string Offsets(absl::string_view offsets) {
  return Entry(absl::StrCat(R"("dtype":"F32","shape":[2],"data_offsets":)", offsets));
}

std::string Shaped(absl::string_view dtype, absl::string_view shape, absl::string_view offsets) {
  return Entry(
      absl::StrCat("\"dtype\":\"", dtype, "\",\"shape\":", shape, ",\"data_offsets\":", offsets));
}

std::string Two(absl::string_view first, absl::string_view second) {
  return absl::StrCat(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":)", first,
                      R"(},"b":{"dtype":"U8","shape":[4],"data_offsets":)", second, "}}");
}

INSTANTIATE_TEST_SUITE_P(
    Cases, SafetensorsRefusesTest,
    testing::Values(
        BadCase{"an_empty_file", "", "the file has 0 bytes, the header's length alone 8"},
        BadCase{"a_truncated_length", std::string(7, '\0'),
                "the file has 7 bytes, the header's length alone 8"},
        BadCase{"no_header", std::string(8, '\0'), "the header is not JSON from byte 1 on"},
        BadCase{"a_header_beyond_the_file", File("{}", 0).substr(0, 9),
                "a header of 2 bytes is told of, 1 bytes follow"},
        BadCase{"a_header_of_nearly_2_to_the_64", std::string(8, '\xff') + "{}",
                "a header of 18446744073709551615 bytes is told of, 2 bytes follow"},
        BadCase{"a_truncated_header", File("{\"a\":", 0), "the header is not JSON from byte 6 on"},
        BadCase{"something_behind_the_header", File("{} {}", 0),
                "the header is not JSON from byte 4 on"},
        BadCase{"not_utf8", File("{\"\xff\":1}", 0), "the header is not JSON from byte 3 on"},
        BadCase{"an_array", File("[]", 0), "an array where the format has none"},
        BadCase{"a_number_for_a_tensor", File(R"({"a":1})", 0),
                "tensor \"a\": a number where the format has none"},
        BadCase{"null_for_a_tensor", File(R"({"a":null})", 0),
                "tensor \"a\": null where the format has none"},
        BadCase{"no_name", File(R"({"":{}})", 0), "a tensor without a name"},
        BadCase{"metadata_that_nest", File(R"({"__metadata__":{"x":{}}})", 0),
                "tensor \"__metadata__\": an object where the format has none"},
        BadCase{"metadata_of_numbers", File(R"({"__metadata__":{"x":1}})", 0),
                "tensor \"__metadata__\": a number where the format has none"},
        BadCase{
            "a_name_twice",
            File(Two("[0,4]", "[4,8]").replace(Two("[0,4]", "[4,8]").find("\"b\""), 3, "\"a\""), 8),
            "tensor \"a\" is there twice"},
        BadCase{"a_field_twice", File(Entry(R"("dtype":"F32","dtype":"F32")"), 0),
                "tensor \"a\": \"dtype\" is there twice or is no field"},
        BadCase{"an_unknown_field", File(Entry(R"("strides":[1])"), 0),
                "tensor \"a\": \"strides\" is there twice or is no field"},
        BadCase{"no_dtype", File(Entry(R"("shape":[2],"data_offsets":[0,8])"), 8),
                "tensor \"a\": dtype is missing"},
        BadCase{"no_shape", File(Entry(R"("dtype":"F32","data_offsets":[0,8])"), 8),
                "tensor \"a\": shape is missing"},
        BadCase{"no_offsets", File(Entry(R"("dtype":"F32","shape":[2])"), 8),
                "tensor \"a\": data_offsets is missing"},
        BadCase{"an_unknown_dtype", File(Shaped("F4", "[2]", "[0,1]"), 1),
                "tensor \"a\": dtype \"F4\" is not one of F32, F16, BF16, F8_E4M3, F8_E5M2, "
                "F8_E8M0, I8, U8, I16, U16, I32, U32, I64, U64, F64, BOOL"},
        BadCase{"a_dtype_that_is_a_number", File(Entry(R"("dtype":4)"), 0),
                "tensor \"a\": a number where the format has none"},
        BadCase{"a_shape_that_nests", File(Shaped("U8", "[[1]]", "[0,1]"), 1),
                "tensor \"a\": an array where the format has none"},
        BadCase{"a_negative_extent", File(Shaped("U8", "[-1]", "[0,1]"), 1),
                "tensor \"a\": number -1 where the format has none"},
        BadCase{"a_broken_extent", File(Shaped("U8", "[1.5]", "[0,1]"), 1),
                "tensor \"a\": number 1.5 where the format has none"},
        BadCase{"an_extent_of_2_to_the_63", File(Shaped("U8", "[9223372036854775808]", "[0,1]"), 1),
                "tensor \"a\": extent 9223372036854775808 does not fit into 63 bits"},
        BadCase{"nine_dimensions", File(Shaped("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1),
                "tensor \"a\": more than 8 numbers in one array"},
        BadCase{"a_size_that_wraps_to_0",
                File(Shaped("F32", "[4294967296,1073741824]", "[0,0]"), 0),
                "tensor \"a\": shape [4294967296, 1073741824] of F32 does not fit into 2^63 bytes"},
        BadCase{"a_size_hidden_by_a_0",
                File(Shaped("F32", "[4294967296,4294967296,0]", "[0,0]"), 0),
                "tensor \"a\": shape [4294967296, 4294967296, 0] of F32 does not fit into 2^63 "
                "bytes"},
        BadCase{"offsets_of_one_number", File(Offsets("[0]"), 8),
                "tensor \"a\": data_offsets has 1 numbers, not 2"},
        BadCase{"offsets_backwards", File(Offsets("[8,0]"), 8),
                "tensor \"a\" at bytes [8, 0): the file has 8 bytes of data"},
        BadCase{"offsets_near_2_to_the_64", File(Offsets("[18446744073709551608,8]"), 8),
                "tensor \"a\" at bytes [18446744073709551608, 8): the file has 8 bytes of data"},
        BadCase{"an_end_near_2_to_the_64", File(Offsets("[0,18446744073709551615]"), 8),
                "tensor \"a\" at bytes [0, 18446744073709551615): the file has 8 bytes of data"},
        BadCase{"an_offset_beyond_2_to_the_64", File(Offsets("[0,18446744073709551616]"), 8),
                "tensor \"a\": number 18446744073709551616 where the format has none"},
        BadCase{"truncated_data", File(Offsets("[0,8]"), 7),
                "tensor \"a\" at bytes [0, 8): the file has 7 bytes of data"},
        BadCase{"another_size_than_its_shape", File(Offsets("[0,7]"), 7),
                "tensor \"a\" at bytes [0, 7): shape [2] of F32 needs 8 bytes, not 7"},
        BadCase{"an_overlap", File(Two("[0,4]", "[3,7]"), 7),
                "tensor \"b\" at bytes [3, 7) overlaps tensor \"a\" at bytes [0, 4)"},
        BadCase{"two_in_one_place", File(Two("[0,4]", "[0,4]"), 4),
                "tensor \"b\" at bytes [0, 4) overlaps tensor \"a\" at bytes [0, 4)"},
        BadCase{"a_hole", File(Two("[0,4]", "[5,9]"), 9),
                "bytes [4, 5) before tensor \"b\" belong to no tensor"},
        BadCase{"bytes_behind_the_last", File(Two("[0,4]", "[4,8]"), 9),
                "bytes [8, 9) belong to no tensor"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(ParseSafetensors, DepthIsNoDanger) {
  EXPECT_FALSE(Parse(File(std::string(1'000'000, '['), 0)).ok());
  EXPECT_FALSE(Parse(File("{\"a\":" + std::string(1'000'000, '{'), 0)).ok());
}

TEST(ParseSafetensors, EveryTruncationIsRefused) {
  const std::string file = File(kGood, 16);
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_FALSE(Parse(file.substr(0, size)).ok()) << size;
  }
}

TEST(ParseSafetensors, EveryChangedByteIsAnErrorOrAFile) {
  const std::string good = File(kGood, 16);
  int accepted = 0;
  for (size_t at = 0; at < good.size(); ++at) {
    for (int value = 0; value < 256; ++value) {
      std::string file = good;
      file[at] = static_cast<char>(value);
      accepted += Parse(file).ok() ? 1 : 0;
    }
  }
  // At least each byte as it was, and what is not part of the header.
  EXPECT_GE(accepted, static_cast<int>(good.size()) + 16 * 255);
}

TEST(SafetensorsFile, NamesTheFile) {
  const std::string directory = FreshDirectory("files");
  EXPECT_EQ(SafetensorsFile::Open(directory + "/x").status().code(), absl::StatusCode::kNotFound);
  WriteFile(directory + "/empty", "");
  EXPECT_EQ(SafetensorsFile::Open(directory + "/empty").status().message(),
            absl::StrCat("read \"", directory, "/empty\": it is empty"));
  EXPECT_EQ(SafetensorsFile::Open(directory).status().message(),
            absl::StrCat("read \"", directory, "\": it is not a file"));
  WriteFile(directory + "/bad", "{}");
  EXPECT_EQ(SafetensorsFile::Open(directory + "/bad").status().message(),
            absl::StrCat("read \"", directory,
                         "/bad\": the file has 2 bytes, the header's length alone 8"));
}

}  // namespace
}  // namespace waybill
