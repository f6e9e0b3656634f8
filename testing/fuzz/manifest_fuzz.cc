// SPDX-License-Identifier: Apache-2.0

// A manifest, as the controller gets it from a rank.
#include "absl/strings/string_view.h"
#include "core/tensor/manifest.h"
#include "core/tensor/manifest_check.h"
#include "core/tensor/manifest_codec.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {
namespace {

// Two interleaved shards, padding, an alias and a NIC.
Manifest Interleaved() {
  Manifest m;
  m.set_host("host");
  m.set_rack("rack");
  m.nics().push_back({.name = "mlx5_0", .rail = 1, .numa_node = 0, .bytes_per_second = 50});
  m.AddRegion("qkv", 8 * 6 * 2 + 16);
  const uint32_t q = m.AddTensor("q", {8, 4}, Dtype::kBf16);
  const uint32_t k = m.AddTensor("k", {8, 2}, Dtype::kBf16);
  m.AddShard(q, {Dtype::kBf16}, Box::Whole({8, 4}), {0, 0, {6, 1}});
  m.AddShard(k, {Dtype::kBf16}, Box::Whole({8, 2}), {0, 8, {6, 1}});
  m.AddPadding(4, {4}, {0, 96, {1}});
  m.AddAlias("query", q);
  return m;
}

Manifest Quantised() {
  Manifest m;
  const Quantisation q = {.block_rows = 4, .block_columns = 4};
  const uint32_t w = m.AddTensor("w", {8, 8}, Dtype::kBf16);
  m.AddRegion("elements", 64);
  m.AddRegion("scales", 16);
  m.AddShard(w, Format::Quantised(q), Box::Whole({8, 8}), {0, 0, {8, 1}});
  m.AddShard(w, Format::Scales(q), Box::Whole({2, 2}), {1, 0, {2, 1}, "order"});
  return m;
}

}  // namespace

std::vector<std::string> Seeds() {
  return {EncodeManifest(Interleaved()), EncodeManifest(Quantised()), EncodeManifest({})};
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace waybill;
  const auto manifest = DecodeManifest({reinterpret_cast<const char*>(data), size});
  if (!manifest.ok()) return 0;
  (void)CheckManifest(*manifest, Holes::kRefused);
  if (!CheckManifest(*manifest, Holes::kAllowed).ok()) return 0;
  (void)CheckOrder(*manifest);
  (void)manifest->total_bytes();
  const auto again = DecodeManifest(EncodeManifest(*manifest));
  fuzz::Require(again.ok() && *again == *manifest, "what is encoded can be decoded");
  return 0;
}
