// SPDX-License-Identifier: Apache-2.0

// Memory that the caller lends, and the ranks that use it.
#ifndef WAYBILL_CAPI_REGION_H_
#define WAYBILL_CAPI_REGION_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "capi/context.h"
#include "capi/object.h"
#include "capi/waybill.h"
#include "core/device/device.h"
#include "core/fabric/fabric.h"
#include "core/tensor/manifest.h"

namespace waybill::capi {

class Region : public Object {
 public:
  using Handle = waybill_region_t;
  static constexpr Kind kKind = Kind::kRegion;

  Region(std::shared_ptr<Context> context, const MemorySpan& memory, bool read_only,
         std::string name)
      : context_(std::move(context)),
        memory_(memory),
        read_only_(read_only),
        name_(std::move(name)) {}

  // Makes the ranks that use the region leave. They are quiescent when this returns.
  void Close() override;

  // Adds a rank, which Close() will close. kInvalidArgument: the region is closed already.
  absl::Status AddUser(const std::shared_ptr<Object>& user);

  const MemorySpan& memory() const { return memory_; }
  bool read_only() const { return read_only_; }
  const std::string& name() const { return name_; }

 private:
  const std::shared_ptr<Context> context_;
  const MemorySpan memory_;
  const bool read_only_;
  const std::string name_;
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::weak_ptr<Object>> users_;
};

using Regions = std::vector<std::shared_ptr<Region>>;
enum class Access { kRead, kWrite };

// Looks up the handles: there must be one for each region of the manifest, of the same size. If
// `access` is kWrite, they must not overlap or be read-only.
absl::StatusOr<Regions> FindRegions(waybill_region_t* const* handles, uint32_t count,
                                    const Manifest& manifest, Access access);
// Adds `user` to all regions.
absl::Status AddUser(const Regions& regions, const std::shared_ptr<Object>& user);
std::vector<MemorySpan> MemoryOf(const Regions& regions);
// Opens the device of those that are a device's memory; null where none is.
absl::StatusOr<std::shared_ptr<Device>> OpenDeviceOf(const Regions& regions);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_REGION_H_
