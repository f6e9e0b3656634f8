// SPDX-License-Identifier: Apache-2.0

// The tests' memory where the host runs the kernels, inside the call that launches them.

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include "kernels/cuda/host_kernels.h"
#include "kernels/cuda/kernel.h"
#include "kernels/cuda/test_memory.h"

namespace waybill::kernels::cuda {
namespace {

Outcome RunKernel(const char* name, std::atomic<CUkern_st*>&, const Launch& launch,
                  const void* arguments, Stream) {
  const HostKernel* const kernel = FindHostKernel(name);
  if (kernel == nullptr) return Outcome::Failed(std::string("no kernel of the name ") + name);
  RunOnHost(*kernel, launch.blocks, launch.threads, arguments);
  return {};
}

class HostMemory : public TestMemory {
 public:
  HostMemory() { SetLauncherForTest(&RunKernel); }

  std::string Reason() override { return {}; }
  void* Allocate(size_t size_bytes) override {
    return std::aligned_alloc(64, (size_bytes + 63) / 64 * 64);
  }
  void Free(void* memory) override { std::free(memory); }
  void Write(void* to, const void* from, size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  void Read(void* to, const void* from, size_t size_bytes) override {
    std::memcpy(to, from, size_bytes);
  }
  Stream stream() override { return nullptr; }
};

}  // namespace

TestMemory& TheMemory() {
  static HostMemory& memory = *new HostMemory;
  return memory;
}

}  // namespace waybill::kernels::cuda
