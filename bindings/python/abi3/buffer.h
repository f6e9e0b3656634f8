// SPDX-License-Identifier: Apache-2.0

// The buffer protocol. It joined the limited API in Python 3.11, as it had been since 3.0, so that
// it works in 3.10 too; the headers hide it there, and this file declares what is needed of it.
#ifndef WAYBILL_BINDINGS_PYTHON_ABI3_BUFFER_H_
#define WAYBILL_BINDINGS_PYTHON_ABI3_BUFFER_H_

#include <cstddef>

#include "bindings/python/abi3/object.h"

namespace waybill::abi3 {

// Py_buffer.
struct BufferView {
  void* buf;
  PyObject* obj;
  Py_ssize_t len;
  Py_ssize_t itemsize;
  int readonly;
  int ndim;
  char* format;
  Py_ssize_t* shape;
  Py_ssize_t* strides;
  Py_ssize_t* suboffsets;
  void* internal;
};

extern "C" {
PyAPI_FUNC(int) PyObject_GetBuffer(PyObject* object, BufferView* view, int flags);
PyAPI_FUNC(int) PyBuffer_FillInfo(BufferView* view, PyObject* object, void* data, Py_ssize_t size,
                                  int read_only, int flags);
PyAPI_FUNC(void) PyBuffer_Release(BufferView* view);
}

using GetBuffer = int (*)(PyObject* object, BufferView* view, int flags);
inline constexpr int kGetBufferSlot = 1;     // Py_bf_getbuffer.
inline constexpr int kFullReadOnly = 0x11c;  // PyBUF_FULL_RO: any layout, and not to be written to.

struct ReadOnlyBytes {
  const void* data;
  size_t size;
};

// Answers a request for a view of an object's bytes. Refuses whoever asks to write.
inline int FillView(BufferView* view, PyObject* object, const ReadOnlyBytes& bytes, int flags) {
  return PyBuffer_FillInfo(view, object, const_cast<void*>(bytes.data),
                           static_cast<Py_ssize_t>(bytes.size), 1, flags);
}

}  // namespace waybill::abi3

#endif  // WAYBILL_BINDINGS_PYTHON_ABI3_BUFFER_H_
