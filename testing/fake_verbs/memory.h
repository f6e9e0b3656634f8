// The memory that a simulated NIC may touch: registrations and their keys.
#ifndef WAYBILL_TESTING_FAKE_VERBS_MEMORY_H_
#define WAYBILL_TESTING_FAKE_VERBS_MEMORY_H_

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

namespace waybill::fake_verbs {

enum class RegistrationKind { kPlain, kDmabuf };

struct Registration : ibv_mr {
  uint64_t begin = 0;
  unsigned access = 0;
  RegistrationKind kind = RegistrationKind::kPlain;
};

// Registrations that fail, by script.
struct RegistrationFault {
  int error = ENOMEM;
  uint64_t above_bytes = 0;              // Only longer ones,
  uint64_t spared_bytes = 0;             // not of exactly this length,
  std::optional<RegistrationKind> kind;  // of this kind,
  uint32_t first = 0;                    // after as many that succeed,
  uint32_t count = ~0u;                  // and then as many.
};

class Memory {
 public:
  // Keys begin there: so a key of one device is none of another.
  explicit Memory(uint32_t first_key) : next_key_(first_key) {}

  void Fail(const RegistrationFault& fault) { fault_ = fault; }

  // Null, and errno is set, where it fails.
  Registration* Register(ibv_pd* pd, uint64_t address, uint64_t size, unsigned access,
                         RegistrationKind kind, uint64_t most_bytes);
  void Deregister(const ibv_mr* mr);

  // The bytes there. Null: the key is none, or of another protection domain, or does not allow it.
  std::byte* Local(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t size) const;
  std::byte* Remote(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t size) const;

  size_t count() const { return by_local_key_.size(); }
  // The newest, for tests that look at its flags. Null: there is none.
  const Registration* newest() const;

 private:
  bool IsToFail(uint64_t size, RegistrationKind kind);
  static std::byte* Within(const Registration& registration, const ibv_pd* pd, uint64_t address,
                           uint64_t size);

  uint32_t next_key_;
  // The two keys of a registration differ, so that taking one for the other does not pass.
  std::map<uint32_t, std::unique_ptr<Registration>> by_local_key_;
  std::map<uint32_t, Registration*> by_remote_key_;
  std::optional<RegistrationFault> fault_;
};

}  // namespace waybill::fake_verbs

#endif  // WAYBILL_TESTING_FAKE_VERBS_MEMORY_H_
