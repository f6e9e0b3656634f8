// SPDX-License-Identifier: Apache-2.0

// A manifest that the caller builds piece by piece.
#ifndef WAYBILL_CAPI_MANIFEST_H_
#define WAYBILL_CAPI_MANIFEST_H_

#include <mutex>
#include <string>
#include <utility>

#include "capi/object.h"
#include "capi/waybill.h"
#include "core/tensor/manifest.h"

namespace waybill::capi {

class ManifestObject : public Object {
 public:
  using Handle = waybill_manifest_t;
  static constexpr Kind kKind = Kind::kManifest;

  explicit ManifestObject(Manifest manifest) : manifest_(std::move(manifest)) {}

  Manifest Copy() const {
    const std::lock_guard lock(mutex_);
    return manifest_;
  }

  template <typename Use>
  auto With(Use use) {
    const std::lock_guard lock(mutex_);
    return use(manifest_);
  }

 private:
  mutable std::mutex mutex_;
  Manifest manifest_;
};

// Returns {"regions", "tensors", "shards", "padding", "aliases"}.
std::string ManifestToJson(const Manifest& manifest);
// {"tensors": [...]}, as they are in it.
std::string TensorsToJson(const Manifest& manifest);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_MANIFEST_H_
