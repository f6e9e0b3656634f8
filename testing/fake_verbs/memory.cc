// SPDX-License-Identifier: Apache-2.0

#include "testing/fake_verbs/memory.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>

#include "testing/fake_cuda/dmabuf_parts.h"

namespace waybill::fake_verbs {
namespace {

constexpr uint64_t kPageBytes = 4096;

// A kernel without a module for peer memory finds no other pages.
bool IsHostMemory(uint64_t address) {
  char byte = 0;
  const iovec here = {&byte, 1};
  const iovec there = {reinterpret_cast<void*>(address), 1};
  return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == 1;
}

// A mapping of that many bytes, without access.
std::shared_ptr<std::byte> Reserve(uint64_t size) {
  void* const mapping = mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  return {static_cast<std::byte*>(mapping), [size](std::byte* m) { munmap(m, size); }};
}

bool IsOfParts(int fd) {
  char name[64] = {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return readlink(path.c_str(), name, sizeof(name) - 1) > 0 &&
         std::string(name).rfind(std::string("/memfd:") + kDmabufPartsName, 0) == 0;
}

// Maps the allocations of a dma-buf side by side. Returns what errno is to be.
int MapParts(const Range& range, Registration& registration) {
  const uint64_t size = range.offset + range.size;
  const std::shared_ptr<std::byte> mapping = Reserve(size);
  if (mapping == nullptr) return ENOMEM;
  uint64_t at = 0;
  DmabufPart part;
  for (off_t i = 0; at < size; ++i) {
    if (pread(range.fd, &part, sizeof(part), i * static_cast<off_t>(sizeof(part))) !=
        static_cast<ssize_t>(sizeof(part))) {
      return EINVAL;  // There is less of it.
    }
    const uint64_t part_bytes = std::min(part.size_bytes, size - at);
    if (mmap(mapping.get() + at, part_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
             part.fd, static_cast<off_t>(part.offset_bytes)) == MAP_FAILED) {
      return errno;
    }
    at += part_bytes;
  }
  registration.mapping = mapping;
  registration.bytes = mapping.get() + range.offset;
  return 0;
}

// Maps what a dma-buf has of the range. Returns what errno is to be.
int MapDmabuf(const Range& range, Registration& registration) {
  if (range.offset % kPageBytes != range.address % kPageBytes) return EINVAL;
  if (IsOfParts(range.fd)) return MapParts(range, registration);
  struct stat file = {};
  const off_t begin = lseek(range.fd, 0, SEEK_CUR);
  if (begin < 0 || fstat(range.fd, &file) != 0) return EBADF;
  const uint64_t size = range.offset + range.size;
  if (static_cast<uint64_t>(begin) + size > static_cast<uint64_t>(file.st_size)) return EINVAL;
  void* const mapping = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, range.fd, begin);
  if (mapping == MAP_FAILED) return errno;
  registration.mapping = std::shared_ptr<std::byte>(static_cast<std::byte*>(mapping),
                                                    [size](std::byte* m) { munmap(m, size); });
  registration.bytes = registration.mapping.get() + range.offset;
  return 0;
}

}  // namespace

bool Memory::IsToFail(uint64_t size, RegistrationKind kind) {
  if (!fault_ || size <= fault_->above_bytes || size == fault_->spared_bytes) return false;
  if (fault_->kind && *fault_->kind != kind) return false;
  if (fault_->first > 0) {
    --fault_->first;
    return false;
  }
  if (fault_->count == 0) return false;
  --fault_->count;
  return true;
}

int Memory::MapPeerMemory(const Range& range, Registration& registration) const {
  const uint64_t begin = range.address / kPageBytes * kPageBytes;
  const uint64_t end = (range.address + range.size + kPageBytes - 1) / kPageBytes * kPageBytes;
  const int fd = options_.peer_memory ? options_.peer_memory(begin, end - begin) : -1;
  if (fd < 0) return EFAULT;
  Range pages = range;
  pages.fd = fd;
  pages.offset = range.address - begin;
  const int error = MapDmabuf(pages, registration);
  close(fd);
  return error;
}

Registration* Memory::Register(ibv_pd* pd, const Range& range, unsigned access) {
  const auto& [address, size, kind, fd, offset] = range;
  if (IsToFail(size, kind)) {
    errno = fault_->error;
    return nullptr;
  }
  const bool writable = (access & IBV_ACCESS_LOCAL_WRITE) != 0;
  const bool overflows = address + size < address;
  if (size == 0 || size > options_.max_registration_bytes || overflows ||
      ((access & IBV_ACCESS_REMOTE_WRITE) != 0 && !writable)) {
    errno = EINVAL;
    return nullptr;
  }
  auto registration = std::make_unique<Registration>();
  registration->bytes = reinterpret_cast<std::byte*>(address);
  const int error = kind == RegistrationKind::kDmabuf ? MapDmabuf(range, *registration)
                    : IsHostMemory(address)           ? 0
                                                      : MapPeerMemory(range, *registration);
  if (error != 0) {
    errno = error;
    return nullptr;
  }
  registration->context = pd->context;
  registration->pd = pd;
  // If it is a dma-buf, libibverbs gives the offset here.
  registration->addr =
      reinterpret_cast<void*>(kind == RegistrationKind::kDmabuf ? range.offset : address);
  registration->length = size;
  registration->lkey = next_key_++;
  std::vector<uint32_t>& freed = freed_remote_keys_[size];
  if (freed.empty()) freed.push_back(next_key_++);
  registration->rkey = freed.back();
  freed.pop_back();
  registration->begin = address;
  registration->access = access;
  registration->kind = kind;
  Registration* made = registration.get();
  by_remote_key_[made->rkey] = made;
  by_local_key_[made->lkey] = std::move(registration);
  return made;
}

int Memory::Deregister(const ibv_mr* mr) {
  if (deregistrations_to_fail_ > 0) {
    --deregistrations_to_fail_;
    return EBUSY;
  }
  freed_remote_keys_[mr->length].push_back(mr->rkey);
  by_remote_key_.erase(mr->rkey);
  by_local_key_.erase(mr->lkey);
  return 0;
}

std::byte* Memory::Within(const Registration& registration, const ibv_pd* pd, uint64_t address,
                          uint64_t size, unsigned access) {
  if ((registration.access & access) != access) return nullptr;
  if (registration.pd != pd || address < registration.begin) return nullptr;
  const uint64_t offset = address - registration.begin;
  if (offset > registration.length || size > registration.length - offset) return nullptr;
  return registration.bytes + offset;
}

std::byte* Memory::Local(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t size,
                         unsigned access) const {
  const auto found = by_local_key_.find(key);
  if (found == by_local_key_.end()) return nullptr;
  return Within(*found->second, pd, address, size, access);
}

std::byte* Memory::Remote(uint32_t key, const ibv_pd* pd, uint64_t address, uint64_t size,
                          unsigned access) const {
  const auto found = by_remote_key_.find(key);
  if (found == by_remote_key_.end()) return nullptr;
  return Within(*found->second, pd, address, size, access);
}

const Registration* Memory::newest() const {
  return by_local_key_.empty() ? nullptr : by_local_key_.rbegin()->second.get();
}

}  // namespace waybill::fake_verbs
