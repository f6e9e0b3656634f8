// SPDX-License-Identifier: Apache-2.0

#include "core/fabric/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/file_size_signal.h"
#include "core/base/narrow.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/fabric/available_memory.h"

namespace waybill {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr uint64_t kHugePageBytes = 2 << 20;
// In <linux/mman.h> from 6.1 on; older kernels say EINVAL.
constexpr int kCollapse = 25;
constexpr uint64_t kCollapseStepBytes = 64 << 20;

// How long huge pages may be asked for: about as long as it takes to have small ones, and at least
// so long that a fragmented host gives some. There the kernel moves what others have, at 2 ms for
// each huge page.
absl::Duration CollapsePatience(uint64_t size_bytes) {
  return std::max(absl::Seconds(2), absl::Nanoseconds(size_bytes / 2));
}

// Maps a file, from its beginning on, at an address where its pages can be huge. Returns MAP_FAILED
// with errno where the system refuses.
void* MapForHugePages(int fd, uint64_t size_bytes, int flags) {
  if (size_bytes < kHugePageBytes) {
    return mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
  }
  const uint64_t mapped_bytes = RoundUp(size_bytes, static_cast<uint64_t>(sysconf(_SC_PAGESIZE)));
  void* const reserved = mmap(nullptr, mapped_bytes + kHugePageBytes, PROT_NONE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return MAP_FAILED;
  std::byte* const begin = static_cast<std::byte*>(reserved);
  const uint64_t before_bytes = -reinterpret_cast<uintptr_t>(begin) % kHugePageBytes;
  void* const at = mmap(begin + before_bytes, size_bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED | flags, fd, 0);
  if (at == MAP_FAILED) {
    const int error = errno;
    munmap(begin, mapped_bytes + kHugePageBytes);
    errno = error;
    return MAP_FAILED;
  }
  if (before_bytes > 0) munmap(begin, before_bytes);
  munmap(static_cast<std::byte*>(at) + mapped_bytes, kHugePageBytes - before_bytes);
  return at;
}

// Gives as much of the file huge pages as the kernel does at once: a core reads them up to 1.4
// times as fast, and they are there sooner than small ones. The rest stays as it is.
void TakeHugePages(int fd, uint64_t size_bytes) {
  const uint64_t whole_bytes = size_bytes / kHugePageBytes * kHugePageBytes;
  if (whole_bytes == 0) return;
  void* const at = MapForHugePages(fd, whole_bytes, /*flags=*/0);
  if (at == MAP_FAILED) return;
  const absl::Time deadline = SteadyNow() + CollapsePatience(size_bytes);
  for (uint64_t begin = 0; begin < whole_bytes && SteadyNow() < deadline;
       begin += kCollapseStepBytes) {
    const uint64_t end = std::min(begin + kCollapseStepBytes, whole_bytes);
    // One page of each: there has to be something that becomes huge.
    for (uint64_t page = begin; page < end; page += kHugePageBytes) {
      (void)fallocate(fd, 0, static_cast<off_t>(page), 1);
    }
    if (madvise(static_cast<std::byte*>(at) + begin, end - begin, kCollapse) != 0) break;
  }
  munmap(at, whole_bytes);
}

absl::Status NoMemory(absl::string_view operation, absl::string_view name, uint64_t size_bytes,
                      int error) {
  std::string message =
      absl::StrCat("allocate \"", name, "\" (", size_bytes, " bytes): ", operation, ": ",
                   std::strerror(error), " (errno ", error, ")");
  if (rlimit limit{}; error == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0) {
    absl::StrAppend(&message, "; RLIMIT_FSIZE is ", limit.rlim_cur, " bytes");
  }
  return absl::ResourceExhaustedError(message);
}

absl::StatusOr<UniqueFd> MakePages(uint64_t size_bytes, const std::string& name) {
  const AvailableMemory available = FindAvailableMemory();
  if (size_bytes > available.size_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("allocate \"", name, "\" (", size_bytes,
                                                     " bytes): ", available.limit, " allows ",
                                                     available.size_bytes, " bytes more"));
  }
  UniqueFd fd(memfd_create(name.substr(0, 200).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return NoMemory("memfd_create", name, size_bytes, errno);
  const auto size = static_cast<off_t>(size_bytes);
  const FileSizeSignalBlocked blocked;
  if (ftruncate(fd.get(), size) != 0) return NoMemory("ftruncate", name, size_bytes, errno);
  TakeHugePages(fd.get(), size_bytes);
  int result;
  do {
    result = fallocate(fd.get(), 0, 0, size);
  } while (result != 0 && errno == EINTR);
  if (result != 0) return NoMemory("fallocate", name, size_bytes, errno);
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return NoMemory("F_ADD_SEALS", name, size_bytes, errno);
  }
  return fd;
}

}  // namespace

SharedPages::SharedPages(SharedPages&& other) noexcept { *this = std::move(other); }

SharedPages& SharedPages::operator=(SharedPages&& other) noexcept {
  if (this != &other) {
    Unmap();
    name_ = std::move(other.name_);
    fd_ = std::move(other.fd_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
  }
  return *this;
}

SharedPages::~SharedPages() { Unmap(); }

void SharedPages::Unmap() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
  data_ = nullptr;
}

absl::Status SharedPages::MapAt(std::byte* address) {
  void* const at = address == nullptr ? MapForHugePages(fd_.get(), size_bytes_, MAP_POPULATE)
                                      : mmap(address, size_bytes_, PROT_READ | PROT_WRITE,
                                             MAP_SHARED | MAP_POPULATE | MAP_FIXED, fd_.get(), 0);
  if (at == MAP_FAILED) return NoMemory("mmap", name_, size_bytes_, errno);
  data_ = static_cast<std::byte*>(at);
  return absl::OkStatus();
}

absl::StatusOr<SharedPages> SharedPages::Create(uint64_t size_bytes, absl::string_view name) {
  SharedPages pages;
  pages.name_ = std::string(name);
  if (size_bytes == 0 || size_bytes > static_cast<uint64_t>(INT64_MAX)) {
    return absl::InvalidArgumentError(
        absl::StrCat("allocate \"", name, "\": ", size_bytes, " bytes"));
  }
  WAYBILL_ASSIGN_OR_RETURN(pages.fd_, MakePages(size_bytes, pages.name_));
  pages.size_bytes_ = size_bytes;
  WAYBILL_RETURN_IF_ERROR(pages.MapAt(nullptr));
  return pages;
}

absl::StatusOr<SharedPages> SharedPages::FromPeer(UniqueFd fd, uint64_t size_bytes) {
  struct stat status{};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError("map a peer's pages: they are not sealed against shrinking");
  }
  if (fstat(fd.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != size_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("map a peer's pages: they have ", status.st_size,
                                                   " bytes, told were ", size_bytes));
  }
  SharedPages pages;
  pages.name_ = "a peer's pages";
  pages.fd_ = std::move(fd);
  pages.size_bytes_ = size_bytes;
  WAYBILL_RETURN_IF_ERROR(pages.MapAt(nullptr));
  return pages;
}

absl::Status SharedPages::Renew(Contents contents) {
  WAYBILL_ASSIGN_OR_RETURN(UniqueFd fresh, MakePages(size_bytes_, name_));
  if (contents == Contents::kKept) {
    SharedPages copy;
    copy.name_ = name_;
    copy.size_bytes_ = size_bytes_;
    std::swap(copy.fd_, fresh);
    WAYBILL_RETURN_IF_ERROR(copy.MapAt(nullptr));
    std::memcpy(copy.data_, data_, size_bytes_);
    std::swap(copy.fd_, fresh);
  }
  std::swap(fd_, fresh);
  return MapAt(data_);
}

}  // namespace waybill
