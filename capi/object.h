// SPDX-License-Identifier: Apache-2.0

// The base of all objects that have handles.
#ifndef WAYBILL_CAPI_OBJECT_H_
#define WAYBILL_CAPI_OBJECT_H_

#include <cstdint>

namespace waybill::capi {

// The kind of an object, which is part of its handle.
enum class Kind : uint8_t {
  kError = 1,
  kBlob,
  kContext,
  kQueue,
  kRegion,
  kManifest,
  kLayout,
  kPlan,
  kController,
  kTrainer,
  kWorker,
  kUpdate,
  kSnapshot,
};

// Each derived class names the type and the kind of its handles:
//
//   using Handle = waybill_plan_t;
//   static constexpr Kind kKind = Kind::kPlan;
//
// Derived classes are thread-safe.
class Object {
 public:
  virtual ~Object() = default;

  // Called when the handle is destroyed. Waits until nothing touches memory that the caller lent.
  // Other threads may still be in calls on the object.
  virtual void Close() {}
};

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_OBJECT_H_
