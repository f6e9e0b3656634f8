// SPDX-License-Identifier: Apache-2.0

#include "capi/region.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "capi/call.h"
#include "capi/struct_size.h"
#include "core/device/device.h"

namespace waybill::capi {

void Region::Close() {
  std::vector<std::weak_ptr<Object>> users;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    users.swap(users_);
  }
  for (const std::weak_ptr<Object>& user : users) {
    if (const std::shared_ptr<Object> alive = user.lock()) alive->Close();
  }
}

absl::Status Region::AddUser(const std::shared_ptr<Object>& user) {
  const std::lock_guard lock(mutex_);
  if (closed_) return absl::InvalidArgumentError(absl::StrCat("region \"", name_, "\" is gone"));
  users_.erase(std::remove_if(users_.begin(), users_.end(),
                              [](const std::weak_ptr<Object>& u) { return u.expired(); }),
               users_.end());
  users_.push_back(user);
  return absl::OkStatus();
}

namespace {

absl::Status CheckApart(const Regions& regions) {
  std::vector<const Region*> sorted;
  for (const auto& region : regions) {
    if (region->memory().size_bytes > 0) sorted.push_back(region.get());
  }
  std::sort(sorted.begin(), sorted.end(),
            [](const Region* a, const Region* b) { return a->memory().data < b->memory().data; });
  for (size_t i = 1; i < sorted.size(); ++i) {
    const MemorySpan& before = sorted[i - 1]->memory();
    if (before.data + before.size_bytes <= sorted[i]->memory().data) continue;
    return absl::InvalidArgumentError(absl::StrCat("regions \"", sorted[i - 1]->name(), "\" and \"",
                                                   sorted[i]->name(), "\" overlap"));
  }
  return absl::OkStatus();
}

absl::StatusOr<MemoryKind> KindOf(const waybill_region_options_t& options) {
  switch (options.kind) {
    case 0:
    case WAYBILL_MEMORY_HOST:
      return MemoryKind::kHost;
    case WAYBILL_MEMORY_DEVICE:
      WAYBILL_RETURN_IF_ERROR(FindGpu());
      if (options.size_bytes > 0) {
        WAYBILL_RETURN_IF_ERROR(FindDevice(options.data, options.size_bytes).status());
      }
      return MemoryKind::kDevice;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("kind ", options.kind, " is no kind of memory"));
  }
}

}  // namespace

absl::StatusOr<Regions> FindRegions(waybill_region_t* const* handles, uint32_t count,
                                    const Manifest& manifest, Access access) {
  if (handles == nullptr && count > 0) return absl::InvalidArgumentError("regions is NULL");
  if (count != manifest.region_count()) {
    return absl::InvalidArgumentError(absl::StrCat("the manifest has ", manifest.region_count(),
                                                   " regions, ", count, " are given"));
  }
  Regions regions;
  for (uint32_t i = 0; i < count; ++i) {
    WAYBILL_ASSIGN_OR_RETURN(auto region,
                             Find<Region>(handles[i], absl::StrCat("regions[", i, "]")));
    const std::string what = absl::StrCat("regions[", i, "], \"", region->name(), "\" for \"",
                                          absl::string_view(manifest.region_name(i)), "\": ");
    if (region->memory().size_bytes != manifest.region_bytes(i)) {
      return absl::InvalidArgumentError(absl::StrCat(what, "it has ", region->memory().size_bytes,
                                                     " bytes, the manifest says ",
                                                     manifest.region_bytes(i)));
    }
    if (access == Access::kWrite && region->read_only()) {
      return absl::InvalidArgumentError(absl::StrCat(what, "it is read-only, and to be written"));
    }
    regions.push_back(std::move(region));
  }
  if (access == Access::kWrite) WAYBILL_RETURN_IF_ERROR(CheckApart(regions));
  return regions;
}

absl::Status AddUser(const Regions& regions, const std::shared_ptr<Object>& user) {
  for (const auto& region : regions) WAYBILL_RETURN_IF_ERROR(region->AddUser(user));
  return absl::OkStatus();
}

std::vector<MemorySpan> MemoryOf(const Regions& regions) {
  std::vector<MemorySpan> spans;
  spans.reserve(regions.size());
  for (const auto& region : regions) spans.push_back(region->memory());
  return spans;
}

absl::StatusOr<std::shared_ptr<Device>> OpenDeviceOf(const Regions& regions) {
  return waybill::OpenDeviceOf(MemoryOf(regions), [&](size_t i) { return regions[i]->name(); });
}

}  // namespace waybill::capi

using waybill::capi::Call;
using waybill::capi::Find;
using waybill::capi::Region;

waybill_status_t waybill_region_create(waybill_context_t* context,
                                       const waybill_region_options_t* options,
                                       waybill_region_t** out_region, waybill_error_t** error) {
  return Call("lend a region", error, [&]() -> absl::Status {
    WAYBILL_RETURN_IF_ERROR(waybill::capi::CheckOutput(out_region, "out_region"));
    WAYBILL_ASSIGN_OR_RETURN(auto parent, Find<waybill::capi::Context>(context, "context"));
    WAYBILL_ASSIGN_OR_RETURN(const auto read, waybill::capi::ReadStruct(options, "options"));
    WAYBILL_ASSIGN_OR_RETURN(std::string name, waybill::capi::Text(read.name, "name"));
    const auto begin = reinterpret_cast<uintptr_t>(read.data);
    if (read.size_bytes > 0 && read.data == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", name, "\": data is NULL and size_bytes ", read.size_bytes));
    }
    if (begin + read.size_bytes < begin || read.size_bytes > UINT64_MAX / 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          "\"", name, "\": ", read.size_bytes, " bytes from there go beyond the address space"));
    }
    absl::StatusOr<waybill::MemoryKind> kind = waybill::capi::KindOf(read);
    if (!kind.ok()) return waybill::While(absl::StrCat("\"", name, "\""), kind.status());
    const waybill::MemorySpan memory = {*kind, static_cast<std::byte*>(read.data), read.size_bytes};
    *out_region = waybill::capi::MakeHandle(
        std::make_shared<Region>(std::move(parent), memory, read.read_only != 0, std::move(name)));
    return absl::OkStatus();
  });
}

void waybill_region_destroy(waybill_region_t* region) {
  waybill::capi::DestroyObject<Region>(region);
}
