// What RDMA and large memory need of a host: looked at, and explained.
#ifndef WAYBILL_TOOLS_WAYBILL_EXAMINE_HOST_H_
#define WAYBILL_TOOLS_WAYBILL_EXAMINE_HOST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/fabric/verbs/survey.h"

namespace waybill {

struct Finding {
  enum class Level : uint8_t {
    kGood,
    kNote,  // Works, and could be better, or is not there and not needed.
    kBad,   // Will not work, or far below what the hardware does.
  };
  std::string subject;  // "mlx5_0, MTU".
  Level level = Level::kGood;
  std::string found;
  std::string remedy;  // Empty where nothing is to be done.
};

// What is read instead of the host's own, for tests.
struct HostView {
  std::string root;                  // Before /sys, /proc.
  uint64_t locked_memory_bytes = 0;  // RLIMIT_MEMLOCK; ~0: unlimited.
  uint64_t open_files = 0;           // RLIMIT_NOFILE.
  std::string kernel_release;        // "6.1.0-56-amd64".
};
HostView ThisHost();

std::vector<Finding> ExamineRdma(const absl::StatusOr<std::vector<SurveyedPort>>& ports);
// PCIe links and NUMA nodes of those devices, GPUs, limits, the kernel.
std::vector<Finding> ExamineHost(const HostView& host, const std::vector<SurveyedPort>& ports);
// Whether a controller could listen on that port of `own_address`, and be reached there.
Finding ExamineControlPort(const std::string& own_address, uint16_t port);

}  // namespace waybill

#endif  // WAYBILL_TOOLS_WAYBILL_EXAMINE_HOST_H_
