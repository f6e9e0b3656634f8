// Values as bytes, little-endian, one after the other; and read back without belief.
#ifndef WAYBILL_CORE_PLAN_BYTE_CODEC_H_
#define WAYBILL_CORE_PLAN_BYTE_CODEC_H_

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace waybill {

static_assert(std::endian::native == std::endian::little, "values are written as they lie");

template <typename T>
void AppendBytes(std::string& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T> && std::has_unique_object_representations_v<T>);
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

class ByteReader {
 public:
  explicit ByteReader(absl::string_view bytes) : bytes_(bytes) {}

  // Returns false if fewer bytes are left.
  template <typename T>
  bool Read(T& value) {
    if (bytes_.size() < sizeof(value)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return true;
  }
  size_t left() const { return bytes_.size(); }
  absl::string_view rest() const { return bytes_; }

 private:
  absl::string_view bytes_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PLAN_BYTE_CODEC_H_
