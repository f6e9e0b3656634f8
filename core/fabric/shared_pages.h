// SPDX-License-Identifier: Apache-2.0

// Memory in a sealed memfd: it can be passed to another process, mapped there, and taken away
// again.
#ifndef WAYBILL_CORE_FABRIC_SHARED_PAGES_H_
#define WAYBILL_CORE_FABRIC_SHARED_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/unique_fd.h"
#include "core/fabric/fabric.h"

namespace waybill {

// Owns pages and their mapping in this process. Movable; not thread-safe.
class SharedPages {
 public:
  SharedPages() = default;
  SharedPages(SharedPages&& other) noexcept;
  SharedPages& operator=(SharedPages&& other) noexcept;
  ~SharedPages();

  // Zeroed pages, all of them reserved and mapped: touching them later can't fail. They are huge
  // where the kernel has such pages (Linux 6.1), whatever the system's settings for them are.
  //
  // kResourceExhausted: the pages cannot be had; says how many bytes, and which limit it was.
  static absl::StatusOr<SharedPages> Create(uint64_t size_bytes, absl::string_view name);

  // Maps the pages behind `fd`, which came from a peer. They are shared with the peer until it
  // renews its own.
  //
  // kInvalidArgument: not sealed against shrinking (touching it could then kill this process), or
  // not of that size.
  static absl::StatusOr<SharedPages> FromPeer(UniqueFd fd, uint64_t size_bytes);

  // Puts fresh pages under the same address: who mapped the old ones keeps writing to those.
  absl::Status Renew(Contents contents);

  int fd() const { return fd_.get(); }
  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return size_bytes_; }

 private:
  absl::Status MapAt(std::byte* address);
  void Unmap();

  std::string name_;
  UniqueFd fd_;
  std::byte* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_FABRIC_SHARED_PAGES_H_
