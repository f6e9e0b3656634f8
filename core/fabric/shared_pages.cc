#include "core/fabric/shared_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/file_size_signal.h"
#include "core/base/status.h"
#include "core/fabric/available_memory.h"

namespace waybill {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

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
  void* at = mmap(address, size_bytes_, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_POPULATE | (address != nullptr ? MAP_FIXED : 0), fd_.get(), 0);
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
