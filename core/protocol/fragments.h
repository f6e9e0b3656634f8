// Messages longer than one frame of the control stream travel as fragments.
//
// A gRPC message is limited to 4 MiB by default, and a manifest, a plan or a buffer with 100,000
// regions is longer. Both ends of a stream use these two, so that no message needs parts of its
// own.
#ifndef WAYBILL_CORE_PROTOCOL_FRAGMENTS_H_
#define WAYBILL_CORE_PROTOCOL_FRAGMENTS_H_

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace waybill {

// The most bytes of a message that is sent whole, and of one fragment.
inline constexpr size_t kMostFrameBytes = 1 << 20;

// Calls send(frame) for each frame of `message`, in order. Message is a RankMessage or a
// ControllerMessage.
template <typename Message, typename Send>
void SendInFrames(Message message, Send send) {
  if (message.ByteSizeLong() <= kMostFrameBytes) return send(std::move(message));
  const std::string bytes = message.SerializeAsString();
  for (size_t begin = 0; begin < bytes.size(); begin += kMostFrameBytes) {
    const size_t size = std::min(kMostFrameBytes, bytes.size() - begin);
    Message frame;
    frame.mutable_fragment()->set_data(bytes.data() + begin, size);
    frame.mutable_fragment()->set_last(begin + size == bytes.size());
    send(std::move(frame));
  }
}

// Puts the frames of one stream together again. Not thread-safe.
template <typename Message>
class Reassembly {
 public:
  explicit Reassembly(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Changes the bound on the bytes of one message.
  void SetLimit(size_t most_bytes) { most_bytes_ = most_bytes; }

  // Returns the message that `frame` completes, or nullopt if more fragments have to follow.
  //
  // kResourceExhausted: the message is longer than the bound; kInvalidArgument: the fragments are
  // not a message, or nest. After an error the stream is of no use.
  absl::StatusOr<std::optional<Message>> Add(Message frame) {
    if (!frame.has_fragment()) {
      if (!bytes_.empty())
        return absl::InvalidArgumentError("a message between fragments of another");
      if (frame.ByteSizeLong() > most_bytes_) return TooLong();
      return std::optional<Message>(std::move(frame));
    }
    if (bytes_.size() + frame.fragment().data().size() > most_bytes_) return TooLong();
    bytes_.append(frame.fragment().data());
    if (!frame.fragment().last()) return std::optional<Message>();
    Message message;
    const bool whole = message.ParseFromString(bytes_);
    bytes_ = {};
    if (!whole || message.has_fragment()) {
      return absl::InvalidArgumentError("the fragments are not a message");
    }
    return std::optional<Message>(std::move(message));
  }

 private:
  absl::Status TooLong() const {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of more than ", most_bytes_, " bytes"));
  }

  size_t most_bytes_;
  std::string bytes_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_PROTOCOL_FRAGMENTS_H_
