// SPDX-License-Identifier: Apache-2.0

// What the sources of the extension module share: owners that let other threads run while they
// destroy, and the part of the module that each source fills.
#ifndef WAYBILL_BINDINGS_PYTHON_WAYBILL_EXTENSION_H_
#define WAYBILL_BINDINGS_PYTHON_WAYBILL_EXTENSION_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/python/abi3/module.h"
#include "capi/waybill.hpp"

namespace waybill::python {

// Owns a handle. A destroy may wait, so that it never does with Python's lock held.
template <typename Owner>
class Kept {
 public:
  explicit Kept(Owner owner) : owner_(std::move(owner)) {}
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() { Close(); }

  void Close() {
    if (!owner_) return;
    Owner last = std::move(owner_);
    const abi3::Unlocked unlocked;
    last.reset();
  }
  // Returns NULL once it is closed: the caller is told what the C ABI says about NULL.
  typename Owner::Type* get() const { return owner_.get(); }
  const Owner& owner() const { return owner_; }

 private:
  Owner owner_;
};

using KeptContext = Kept<Context>;
using KeptManifest = Kept<Manifest>;
using KeptQueue = Kept<Queue>;

// Memory that is lent, and the Python objects that it belongs to: they live until it is given back.
class KeptRegion {
 public:
  KeptRegion(Region region, abi3::Object owners)
      : owners_(std::move(owners)), region_(std::move(region)) {}
  void Close() {
    region_.Close();
    owners_ = abi3::Object();
  }
  waybill_region_t* get() const { return region_.get(); }

 private:
  abi3::Object owners_;
  Kept<Region> region_;  // Destroyed first.
};

// Options of the C ABI, and the texts that they point to.
template <typename Struct>
struct Options {
  Options() = default;
  Options(const Options&) = delete;
  Options& operator=(const Options&) = delete;

  const char* Keep(std::string text) { return texts.emplace_back(std::move(text)).c_str(); }

  Struct c;
  std::deque<std::string> texts;  // They stay where they are.
};

// The C ABI's handle as a number, for native code of other modules.
template <typename Keeper>
uintptr_t HandleOf(const Keeper& keeper) {
  return reinterpret_cast<uintptr_t>(keeper.get());
}

// The exception that waybill.errors makes of an error.
abi3::Object ToException(waybill_status_t code, uint32_t scope, const std::string& message);

void AddErrors(abi3::Module& module);
void AddContext(abi3::Module& module);
void AddOptions(abi3::Module& module);
void AddQueue(abi3::Module& module);
void AddMemory(abi3::Module& module);
void AddManifest(abi3::Module& module);
void AddPlanning(abi3::Module& module);
void AddController(abi3::Module& module);
void AddRanks(abi3::Module& module);

}  // namespace waybill::python

#endif  // WAYBILL_BINDINGS_PYTHON_WAYBILL_EXTENSION_H_
