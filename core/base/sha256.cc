// SPDX-License-Identifier: Apache-2.0

#include "core/base/sha256.h"

#include <openssl/evp.h>

#include <cstdlib>

namespace waybill {

std::string Sha256(absl::string_view bytes) {
  std::string hash(32, '\0');
  // It fails only where the library has no SHA-256. Another hash would let ranks mistake parts.
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(hash.data()), nullptr,
                 EVP_sha256(), nullptr) != 1) {
    std::abort();
  }
  return hash;
}

}  // namespace waybill
