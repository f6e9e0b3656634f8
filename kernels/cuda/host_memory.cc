// The tests' memory where the host runs the kernels.

#include <cstdlib>
#include <cstring>

#include "kernels/cuda/host_threads.h"
#include "kernels/cuda/test_memory.h"

namespace waybill::kernels::cuda {
namespace {

class HostMemory : public TestMemory {
 public:
  HostMemory() { LaunchOnHost(); }

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
