// What a handle stands for.
#ifndef WAYBILL_CAPI_OBJECT_H_
#define WAYBILL_CAPI_OBJECT_H_

#include <cstdint>

namespace waybill::capi {

// Part of a handle's bits.
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

// Derived classes say which handles are theirs:
//
//   using Handle = waybill_plan_t;
//   static constexpr Kind kKind = Kind::kPlan;
//
// Thread-safe, each by its own means.
class Object {
 public:
  virtual ~Object() = default;

  // The handle was destroyed. Waits until nothing touches what the caller lent; other threads may
  // still be inside of calls.
  virtual void Close() {}
};

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_OBJECT_H_
