// SPDX-License-Identifier: Apache-2.0

// What a fuzz target implements. The same source runs under driver.cc, as an ordinary test, and
// under libFuzzer (--config=fuzz).
#ifndef WAYBILL_TESTING_FUZZ_FUZZ_TARGET_H_
#define WAYBILL_TESTING_FUZZ_FUZZ_TARGET_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace waybill::fuzz {

// Returns valid inputs, made by the encoders. The driver mutates them.
std::vector<std::string> Seeds();

// Ends the process if `holds` is false. `promise` says what is broken.
inline void Require(bool holds, const char* promise) {
  if (holds) return;
  std::fprintf(stderr, "broken: %s\n", promise);
  std::abort();
}

}  // namespace waybill::fuzz

// Passes one input to the decoder. Returns 0.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // WAYBILL_TESTING_FUZZ_FUZZ_TARGET_H_
