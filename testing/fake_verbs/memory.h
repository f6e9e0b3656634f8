// SPDX-License-Identifier: Apache-2.0

// The memory that a simulated NIC may access: registrations and their keys.
#ifndef WAYBILL_TESTING_FAKE_VERBS_MEMORY_H_
#define WAYBILL_TESTING_FAKE_VERBS_MEMORY_H_

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "testing/fake_verbs/device_options.h"

namespace waybill::fake_verbs {

enum class RegistrationKind { kPlain, kDmabuf };

// What is to be registered.
struct Range {
  uint64_t address = 0;
  uint64_t size = 0;
  RegistrationKind kind = RegistrationKind::kPlain;
  // Of a dma-buf. It begins where the descriptor is positioned, as those of //testing/fake_cuda do.
  int fd = -1;
  uint64_t offset = 0;
};

struct Registration : ibv_mr {
  uint64_t begin = 0;
  unsigned access = 0;
  RegistrationKind kind = RegistrationKind::kPlain;
  std::byte* bytes = nullptr;
  std::shared_ptr<std::byte> mapping;  // Of a dma-buf's pages.
};

// Says which registrations fail.
struct RegistrationFault {
  int error = ENOMEM;
  uint64_t above_bytes = 0;              // Fails only longer ones,
  uint64_t spared_bytes = 0;             // but none of exactly this length,
  std::optional<RegistrationKind> kind;  // only this kind,
  uint32_t first = 0;                    // after this many that succeed,
  uint32_t count = ~0u;                  // and then this many.
};

class Memory {
 public:
  // Keys begin at this number, so that a key of one device is invalid on another.
  // `options` outlive it.
  Memory(uint32_t first_key, const DeviceOptions& options)
      : next_key_(first_key), options_(options) {}

  void Fail(const RegistrationFault& fault) { fault_ = fault; }

  // Returns null and sets errno on failure.
  Registration* Register(ibv_pd* pd, const Range& range, unsigned access);
  // Returns what ibv_dereg_mr returns. If that is an errno, the keys stay valid.
  int Deregister(const ibv_mr* mr);
  // Makes the next `count` deregistrations fail with EBUSY.
  void FailDeregistrations(uint32_t count) { deregistrations_to_fail_ = count; }

  // Returns the bytes at an address, or null if the key is invalid, of another protection domain,
  // or does not allow all of `access`. What is local may always be read.
  std::byte* Local(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t size,
                   unsigned access) const;
  std::byte* Remote(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t size,
                    unsigned access) const;

  size_t count() const { return by_local_key_.size(); }
  // Returns the newest registration, for tests of its flags, or null.
  const Registration* newest() const;

 private:
  bool IsToFail(uint64_t size, RegistrationKind kind);
  static std::byte* Within(const Registration& registration, const ibv_pd* pd, uint64_t address,
                           uint64_t size, unsigned access);

  // Memory of a device by its address. Returns what errno is to be.
  int MapPeerMemory(const Range& range, Registration& registration) const;

  uint32_t next_key_;
  const DeviceOptions& options_;
  // The two keys of a registration differ, so that confusing them is noticed.
  std::map<uint32_t, std::unique_ptr<Registration>> by_local_key_;
  std::map<uint32_t, Registration*> by_remote_key_;
  std::optional<RegistrationFault> fault_;
  uint32_t deregistrations_to_fail_ = 0;
  // Freed remote keys by the size of their registration. The last one freed is the first one used
  // again, as the pools of mlx5 have it.
  std::map<uint64_t, std::vector<uint32_t>> freed_remote_keys_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_MEMORY_H_
