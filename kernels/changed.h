// SPDX-License-Identifier: Apache-2.0

// The elements in which two arrays differ.

#ifndef KERNELS_CHANGED_H_
#define KERNELS_CHANGED_H_

#include <cstddef>
#include <cstdint>

namespace waybill::kernels {

// Stores the indices of the elements whose bits differ, in ascending order, and returns their
// number. `indices` has room for `count`, which is at most 65,536. Elements have 1, 2 or 4 bytes;
// the arrays may have any alignment.
size_t FindChanged(const void* newest, const void* before, size_t count, size_t element_bytes,
                   uint16_t* indices);

}  // namespace waybill::kernels

#endif  // KERNELS_CHANGED_H_
