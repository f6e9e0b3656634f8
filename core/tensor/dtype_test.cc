// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/dtype.h"

#include <gtest/gtest.h>

#include "core/tensor/format.h"

namespace waybill {
namespace {

TEST(Dtype, EveryNumberHasANameThatParsesBack) {
  int known = 0;
  for (uint32_t number = 0; number <= 0x1FF; ++number) {
    const auto dtype = DtypeFromNumber(number);
    if (!dtype.ok()) continue;
    ++known;
    EXPECT_EQ(*ParseDtype(Name(*dtype)), *dtype);
    EXPECT_GT(SizeBytes(*dtype), 0u);
  }
  EXPECT_EQ(known, 16);
}

TEST(Dtype, AnUnknownNameIsAnErrorThatListsTheKnown) {
  const auto status = ParseDtype("BF17").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("dtype \"BF17\" is not one of F32, F16, BF16"),
            std::string::npos);
  EXPECT_FALSE(DtypeFromNumber(0).ok());
  EXPECT_EQ(DtypeFromNumber(17).status().message(), "dtype number 17 is not one of 1 to 16");
}

TEST(Format, CastsAreBetweenF32AndTheHalvesAndFromBf16ToF16) {
  for (const Dtype from : {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kI8}) {
    for (const Dtype to : {Dtype::kF32, Dtype::kF16, Dtype::kBf16, Dtype::kI8}) {
      const bool floats = from != Dtype::kI8 && to != Dtype::kI8;
      const bool one_is_f32 = (from == Dtype::kF32) != (to == Dtype::kF32);
      const bool bf16_to_f16 = from == Dtype::kBf16 && to == Dtype::kF16;
      EXPECT_EQ(CheckConversion({from}, {to}).ok(),
                from == to || (floats && one_is_f32) || bf16_to_f16)
          << Name(from) << " to " << Name(to);
    }
  }
  EXPECT_EQ(
      CheckConversion({Dtype::kF16}, {Dtype::kBf16}).message(),
      "no conversion from F16 to BF16; there are: the same format, U8 for 8-bit floats, F32 "
      "to and from F16 and BF16, BF16 to F16, each of them quantised; for others the trainer adds "
      "a tensor of the wanted type, which it fills before each publish");
}

TEST(Format, BytesAreFloatsAndScalesOf8Bits) {
  for (const Dtype dtype : {Dtype::kE8m0, Dtype::kF8E4m3, Dtype::kF8E5m2}) {
    EXPECT_TRUE(CheckConversion({dtype}, {Dtype::kU8}).ok()) << Name(dtype);
    EXPECT_TRUE(CheckConversion({Dtype::kU8}, {dtype}).ok()) << Name(dtype);
    EXPECT_FALSE(CheckConversion({dtype}, {Dtype::kI8}).ok()) << Name(dtype);
  }
  EXPECT_TRUE(CheckConversion({Dtype::kBool}, {Dtype::kU8}).ok());
  EXPECT_FALSE(CheckConversion({Dtype::kU8}, {Dtype::kBool}).ok());  // 2 is no boolean.
  EXPECT_FALSE(CheckConversion({Dtype::kU8}, {Dtype::kI8}).ok());
  EXPECT_FALSE(CheckConversion({Dtype::kF8E4m3}, {Dtype::kF8E5m2}).ok());
}

TEST(Format, FloatsAreQuantised) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16, Dtype::kBf16}) {
    EXPECT_TRUE(CheckConversion({dtype}, Format::Quantised({})).ok());
    EXPECT_TRUE(CheckConversion({dtype}, Format::Scales({})).ok());
  }
  const auto refused = CheckConversion({Dtype::kI8}, Format::Quantised({}));
  EXPECT_EQ(refused.message().find("no conversion from I8 to F8_E4M3 by 128x128 with F32 scales; "),
            0);
}

}  // namespace
}  // namespace waybill
