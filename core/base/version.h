// SPDX-License-Identifier: Apache-2.0

// The version of the program or library that this is linked into.
#ifndef WAYBILL_CORE_BASE_VERSION_H_
#define WAYBILL_CORE_BASE_VERSION_H_

namespace waybill {

// As in //:version.bzl: major.minor.patch.
extern const char* const kVersion;

}  // namespace waybill

#endif  // WAYBILL_CORE_BASE_VERSION_H_
