// The kernels, compiled for the host.

#include "kernels/cuda/host_language.h"

// First the language, then what is written in it.
#include <string_view>

#include "kernels/cuda/cast.cu"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/maxima.cu"
#include "kernels/cuda/quantise.cu"
#include "kernels/cuda/quantise_blocks.cu"
#include "kernels/cuda/rows.cu"
#include "kernels/cuda/transpose.cu"

namespace waybill::kernels::cuda {
namespace {

using Run = void (*)(const void* arguments);

template <typename Arguments, void (*kKernel)(Arguments)>
void RunOn(const void* arguments) {
  kKernel(*static_cast<const Arguments*>(arguments));
}

struct Entry {
  std::string_view name;
  Run run;
};

#define WAYBILL_ENTRY(arguments, name) \
  Entry { #name, RunOn<arguments, name> }
#define WAYBILL_PAIR(arguments, name) \
  WAYBILL_ENTRY(arguments, name##Aligned), WAYBILL_ENTRY(arguments, name##Any)
#define WAYBILL_QUANTISERS(types)                                           \
  WAYBILL_PAIR(QuantiseArguments, WaybillQuantise##types),                  \
      WAYBILL_ENTRY(QuantiseBlocksArguments, WaybillQuantiseBlocks##types), \
      WAYBILL_PAIR(QuantiseMxArguments, WaybillQuantiseMx##types)

const Entry kEntries[] = {
    WAYBILL_ENTRY(RowsArguments, WaybillRows1),
    WAYBILL_ENTRY(RowsArguments, WaybillRows2),
    WAYBILL_ENTRY(RowsArguments, WaybillRows4),
    WAYBILL_ENTRY(RowsArguments, WaybillRows8),
    WAYBILL_ENTRY(RowsArguments, WaybillRows16),
    WAYBILL_PAIR(CastArguments, WaybillCast),
    WAYBILL_ENTRY(TransposeArguments, WaybillTranspose1),
    WAYBILL_ENTRY(TransposeArguments, WaybillTranspose2),
    WAYBILL_ENTRY(TransposeArguments, WaybillTranspose4),
    WAYBILL_ENTRY(TransposeArguments, WaybillTranspose8),
    WAYBILL_ENTRY(TransposeArguments, WaybillTransposeF32ToBf16),
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
    WAYBILL_PAIR(DequantiseArguments, WaybillDequantiseF32),
    WAYBILL_PAIR(DequantiseArguments, WaybillDequantiseF16),
    WAYBILL_PAIR(DequantiseArguments, WaybillDequantiseBf16),
};

Outcome RunKernel(const char* name, std::atomic<CUkern_st*>&, const Launch& launch,
                  const void* arguments, Stream) {
  for (const Entry& entry : kEntries) {
    if (entry.name != name) continue;
    RunBlocks(launch.blocks, launch.threads, [&] { entry.run(arguments); });
    return {};
  }
  return Outcome::Failed(std::string("no kernel of the name ") + name);
}

}  // namespace

void LaunchOnHost() { SetLauncherForTest(&RunKernel); }

}  // namespace waybill::kernels::cuda
