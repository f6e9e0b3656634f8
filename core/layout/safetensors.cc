// SPDX-License-Identifier: Apache-2.0

#include "core/layout/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/layout/safetensors_header.h"
#include "core/tensor/box.h"

namespace waybill {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // As the reference reader has it.

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

std::string Bytes(const HeaderEntry& e) {
  return absl::StrCat("tensor \"", e.name, "\" at bytes [", e.begin, ", ", e.end, ")");
}

// The bytes that shape and dtype need. Extents of 0 are left out of what has to fit, so that a
// tensor without elements cannot hide the others.
absl::StatusOr<uint64_t> NeededBytes(const HeaderEntry& e) {
  uint64_t needed = SizeBytes(e.dtype);
  bool empty = false;
  for (const int64_t extent : e.shape) {
    if (extent == 0) empty = true;
    if (extent > 1 && __builtin_mul_overflow(needed, static_cast<uint64_t>(extent), &needed)) {
      needed = std::numeric_limits<uint64_t>::max();
    }
    if (needed > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Invalid(absl::StrCat("tensor \"", e.name, "\": shape ", ShapeToString(e.shape), " of ",
                                  Name(e.dtype), " does not fit into 2^63 bytes"));
    }
  }
  return empty ? 0 : needed;
}

absl::Status CheckTiling(const std::vector<HeaderEntry>& entries, uint64_t data_bytes) {
  std::vector<size_t> order(entries.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(entries[a].begin, entries[a].end) <
           std::pair(entries[b].begin, entries[b].end);
  });
  uint64_t covered = 0;
  const HeaderEntry* previous = nullptr;
  for (const size_t i : order) {
    const HeaderEntry& e = entries[i];
    if (e.begin < covered) {
      return Invalid(absl::StrCat(Bytes(e), " overlaps ", Bytes(*previous)));
    }
    if (e.begin > covered) {
      return Invalid(absl::StrCat("bytes [", covered, ", ", e.begin, ") before tensor \"", e.name,
                                  "\" belong to no tensor"));
    }
    covered = e.end;
    previous = &e;
  }
  if (covered != data_bytes) {
    return Invalid(absl::StrCat("bytes [", covered, ", ", data_bytes, ") belong to no tensor"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<CheckpointTensor>> ParseSafetensors(absl::Span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    return Invalid(absl::StrCat("the file has ", file.size(), " bytes, the header's length alone ",
                                kLengthBytes));
  }
  uint64_t header_bytes;
  static_assert(std::endian::native == std::endian::little);
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  if (header_bytes > file.size() - kLengthBytes) {
    return Invalid(absl::StrCat("a header of ", header_bytes, " bytes is told of, ",
                                file.size() - kLengthBytes, " bytes follow"));
  }
  if (header_bytes > kMaxHeaderBytes) {
    return Invalid(
        absl::StrCat("a header of ", header_bytes, " bytes, allowed are ", kMaxHeaderBytes));
  }
  const absl::Span<const std::byte> data = file.subspan(kLengthBytes + header_bytes);
  WAYBILL_ASSIGN_OR_RETURN(
      std::vector<HeaderEntry> entries,
      ParseSafetensorsHeader({reinterpret_cast<const char*>(file.data()) + kLengthBytes,
                              static_cast<size_t>(header_bytes)}));
  for (const HeaderEntry& e : entries) {
    if (e.begin > e.end || e.end > data.size()) {
      return Invalid(absl::StrCat(Bytes(e), ": the file has ", data.size(), " bytes of data"));
    }
    WAYBILL_ASSIGN_OR_RETURN(const uint64_t needed, NeededBytes(e));
    if (needed != e.end - e.begin) {
      return Invalid(absl::StrCat(Bytes(e), ": shape ", ShapeToString(e.shape), " of ",
                                  Name(e.dtype), " needs ", needed, " bytes, not ",
                                  e.end - e.begin));
    }
  }
  WAYBILL_RETURN_IF_ERROR(CheckTiling(entries, data.size()));
  std::stable_sort(entries.begin(), entries.end(),
                   [](const HeaderEntry& a, const HeaderEntry& b) { return a.begin < b.begin; });
  std::vector<CheckpointTensor> tensors;
  tensors.reserve(entries.size());
  for (HeaderEntry& e : entries) {
    tensors.push_back({.name = std::move(e.name),
                       .dtype = e.dtype,
                       .shape = std::move(e.shape),
                       .data = data.subspan(e.begin, e.end - e.begin)});
  }
  return tensors;
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept { *this = std::move(other); }

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  if (this != &other) {
    if (data_ != nullptr) munmap(data_, size_bytes_);
    data_ = std::exchange(other.data_, nullptr);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    tensors_ = std::move(other.tensors_);
  }
  return *this;
}

SafetensorsFile::~SafetensorsFile() {
  if (data_ != nullptr) munmap(data_, size_bytes_);
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  const auto failed = [&](absl::string_view operation) {
    const int error = errno;
    return absl::ErrnoToStatus(error, absl::StrCat("read \"", path, "\": ", operation));
  };
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return failed("open");
  struct stat status{};
  if (fstat(fd.get(), &status) != 0) return failed("fstat");
  SafetensorsFile file;
  file.size_bytes_ = static_cast<size_t>(status.st_size);
  if (!S_ISREG(status.st_mode) || file.size_bytes_ == 0) {
    return Invalid(absl::StrCat(
        "read \"", path, "\": ", S_ISREG(status.st_mode) ? "it is empty" : "it is not a file"));
  }
  void* data = mmap(nullptr, file.size_bytes_, PROT_READ, MAP_PRIVATE, fd.get(), 0);
  if (data == MAP_FAILED) return failed("mmap");
  file.data_ = data;
  auto tensors = ParseSafetensors({static_cast<const std::byte*>(data), file.size_bytes_});
  if (!tensors.ok()) return While(absl::StrCat("read \"", path, "\""), tensors.status());
  file.tensors_ = *std::move(tensors);
  return file;
}

}  // namespace waybill
