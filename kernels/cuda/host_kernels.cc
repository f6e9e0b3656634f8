// SPDX-License-Identifier: Apache-2.0

#include "kernels/cuda/host_kernels.h"

#include "kernels/cuda/host_language.h"

// First the language, then what is written in it.
#include "kernels/cuda/cast.cu"
#include "kernels/cuda/maxima.cu"
#include "kernels/cuda/quantise.cu"
#include "kernels/cuda/quantise_blocks.cu"
#include "kernels/cuda/rows.cu"
#include "kernels/cuda/transpose.cu"

namespace waybill::kernels::cuda {
namespace {

template <typename Arguments, void (*kKernel)(Arguments)>
void RunOn(const void* arguments) {
  kKernel(*static_cast<const Arguments*>(arguments));
}

#define WAYBILL_ENTRY(arguments, name) \
  HostKernel { #name, sizeof(arguments), RunOn<arguments, name> }
#define WAYBILL_PAIR(arguments, name) \
  WAYBILL_ENTRY(arguments, name##Aligned), WAYBILL_ENTRY(arguments, name##Any)
#define WAYBILL_QUANTISERS(types)                                           \
  WAYBILL_PAIR(QuantiseArguments, WaybillQuantise##types),                  \
      WAYBILL_ENTRY(QuantiseBlocksArguments, WaybillQuantiseBlocks##types), \
      WAYBILL_PAIR(QuantiseMxArguments, WaybillQuantiseMx##types)

const HostKernel kKernels[] = {
    WAYBILL_ENTRY(RowsArguments, WaybillRows1),
    WAYBILL_ENTRY(RowsArguments, WaybillRows2),
    WAYBILL_ENTRY(RowsArguments, WaybillRows4),
    WAYBILL_ENTRY(RowsArguments, WaybillRows8),
    WAYBILL_ENTRY(RowsArguments, WaybillRows16),
    WAYBILL_PAIR(CastArguments, WaybillCastF32ToBf16),
    WAYBILL_PAIR(CastArguments, WaybillCastF32ToF16),
    WAYBILL_PAIR(CastArguments, WaybillCastBf16ToF32),
    WAYBILL_PAIR(CastArguments, WaybillCastF16ToF32),
    WAYBILL_PAIR(CastArguments, WaybillCastBf16ToF16),
    WAYBILL_ENTRY(TransposeArguments, WaybillTranspose1),
    WAYBILL_ENTRY(TransposeArguments, WaybillTranspose2),
    WAYBILL_ENTRY(TransposeArguments, WaybillTranspose4),
    WAYBILL_ENTRY(TransposeArguments, WaybillTranspose8),
    WAYBILL_ENTRY(TransposeArguments, WaybillTransposeF32ToBf16),
    WAYBILL_ENTRY(TransposeArguments, WaybillTransposeF32ToF16),
    WAYBILL_ENTRY(TransposeArguments, WaybillTransposeBf16ToF32),
    WAYBILL_ENTRY(TransposeArguments, WaybillTransposeF16ToF32),
    WAYBILL_ENTRY(TransposeArguments, WaybillTransposeBf16ToF16),
    WAYBILL_PAIR(MaximaArguments, WaybillMaxima32),
    WAYBILL_PAIR(MaximaArguments, WaybillMaxima16),
    WAYBILL_ENTRY(ScalesArguments, WaybillClearMaxima),
    WAYBILL_ENTRY(ScalesArguments, WaybillScales),
    WAYBILL_QUANTISERS(F32E4m3),
    WAYBILL_QUANTISERS(F32E5m2),
    WAYBILL_QUANTISERS(F16E4m3),
    WAYBILL_QUANTISERS(F16E5m2),
    WAYBILL_QUANTISERS(Bf16E4m3),
    WAYBILL_QUANTISERS(Bf16E5m2),
};

}  // namespace

std::span<const HostKernel> HostKernels() { return kKernels; }

const HostKernel* FindHostKernel(std::string_view name) {
  for (const HostKernel& kernel : kKernels) {
    if (kernel.name == name) return &kernel;
  }
  return nullptr;
}

void RunOnHost(const HostKernel& kernel, uint64_t blocks, unsigned threads, const void* arguments) {
  RunBlocks(blocks, threads, [&] { kernel.run(arguments); });
}

}  // namespace waybill::kernels::cuda
