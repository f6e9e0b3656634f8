// SPDX-License-Identifier: Apache-2.0

// DLPack's structs, as its specification (dmlc/dlpack, 1.0) has them: how frameworks hand tensors
// to each other without a copy.
#ifndef WAYBILL_BINDINGS_PYTHON_WAYBILL_DLPACK_H_
#define WAYBILL_BINDINGS_PYTHON_WAYBILL_DLPACK_H_

#include <cstdint>

namespace waybill::python::dlpack {

struct DataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct Tensor {
  void* data;
  int32_t device_type;  // 1: host; 3: host, pinned by CUDA.
  int32_t device_id;
  int32_t dimensions;
  DataType dtype;
  int64_t* shape;
  int64_t* strides;  // In elements; NULL: dense.
  uint64_t byte_offset;
};

// In a capsule "dltensor".
struct Managed {
  Tensor tensor;
  void* context;
  void (*deleter)(Managed* self);
};

// In a capsule "dltensor_versioned".
struct ManagedVersioned {
  uint32_t major;
  uint32_t minor;
  void* context;
  void (*deleter)(ManagedVersioned* self);
  uint64_t flags;  // Bit 0: read-only.
  Tensor tensor;
};

}  // namespace waybill::python::dlpack

#endif  // WAYBILL_BINDINGS_PYTHON_WAYBILL_DLPACK_H_
