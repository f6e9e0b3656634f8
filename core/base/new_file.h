// SPDX-License-Identifier: Apache-2.0

// Creates a file that no other process has put there.
#ifndef WAYBILL_CORE_BASE_NEW_FILE_H_
#define WAYBILL_CORE_BASE_NEW_FILE_H_

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "core/base/unique_fd.h"

namespace waybill {

// Opens an empty file for reading and writing, which only its owner can read. Removes what had the
// name before, so a symbolic link is never followed. Invalid on failure; errno says why.
inline UniqueFd OpenNewFile(const std::string& path) {
  constexpr mode_t kOnlyTheOwner = 0600;
  unlink(path.c_str());  // If it fails, open() does too.
  return UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kOnlyTheOwner));
}

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_NEW_FILE_H_
