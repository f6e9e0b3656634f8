// SPDX-License-Identifier: Apache-2.0

// Packs messages into the frames of a control stream. Messages that wait for the stream share a
// frame, and a message that is too long for a frame is split into fragments.
//
// A gRPC message is limited to 4 MiB by default, and a manifest, a plan or a buffer with 100,000
// regions is longer. Many short messages are cheaper to send in one frame: a trainer of a job with
// 200 groups gets 200 STARTs. `Frame` is RankFrame or ControllerFrame.
#ifndef WAYBILL_CORE_PROTOCOL_FRAMES_H_
#define WAYBILL_CORE_PROTOCOL_FRAMES_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace waybill {

// The most bytes of messages, or of a fragment, in one frame.
inline constexpr size_t kMostFrameBytes = 1 << 20;

template <typename Frame>
using MessageOf = std::decay_t<decltype(std::declval<Frame>().messages(0))>;

// A queue of frames to send. Not thread-safe.
template <typename Frame>
class OutgoingFrames {
 public:
  using Message = MessageOf<Frame>;

  // Appends a message. front() does not change, unless the queue was empty.
  void Push(Message message) {
    const size_t size_bytes = message.ByteSizeLong();
    if (size_bytes > kMostFrameBytes) return PushInFragments(message);
    if (frames_.size() < 2 || back_bytes_ + size_bytes > kMostFrameBytes) {
      frames_.emplace_back();
      back_bytes_ = 0;
    }
    *frames_.back().add_messages() = std::move(message);
    back_bytes_ += size_bytes;
  }

  bool empty() const { return frames_.empty(); }
  void clear() { frames_.clear(); }
  // The next frame to send. The reference stays valid, and the frame unchanged, until Pop().
  const Frame& front() const { return frames_.front(); }
  void Pop() { frames_.pop_front(); }

 private:
  void PushInFragments(const Message& message) {
    const std::string bytes = message.SerializeAsString();
    for (size_t begin = 0; begin < bytes.size(); begin += kMostFrameBytes) {
      const size_t size = std::min(kMostFrameBytes, bytes.size() - begin);
      Frame& frame = frames_.emplace_back();
      frame.mutable_fragment()->set_data(bytes.data() + begin, size);
      frame.mutable_fragment()->set_last(begin + size == bytes.size());
    }
    back_bytes_ = kMostFrameBytes;  // No message is added to a fragment's frame.
  }

  std::deque<Frame> frames_;
  size_t back_bytes_ = 0;  // The size of the messages in the last frame.
};

// Extracts the messages from the frames of one stream. Not thread-safe.
template <typename Frame>
class IncomingFrames {
 public:
  using Message = MessageOf<Frame>;

  explicit IncomingFrames(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Sets the maximum size of a message.
  void SetLimit(size_t most_bytes) { most_bytes_ = most_bytes; }

  // Returns the messages that `frame` completes, in order; none if more fragments must follow.
  //
  // kResourceExhausted: a message is longer than the maximum; kInvalidArgument: the fragments do
  // not form a message. The stream must be closed after an error.
  absl::StatusOr<std::vector<Message>> Add(Frame frame) {
    if (!frame.has_fragment()) {
      if (!bytes_.empty()) {
        return absl::InvalidArgumentError("a message between fragments of another");
      }
      std::vector<Message> messages;
      messages.reserve(static_cast<size_t>(frame.messages_size()));
      for (Message& message : *frame.mutable_messages()) {
        if (message.ByteSizeLong() > most_bytes_) return TooLong();
        messages.push_back(std::move(message));
      }
      return messages;
    }
    if (bytes_.size() + frame.fragment().data().size() > most_bytes_) return TooLong();
    bytes_.append(frame.fragment().data());
    if (!frame.fragment().last()) return std::vector<Message>();
    std::vector<Message> messages(1);
    const bool whole = messages.front().ParseFromString(bytes_);
    bytes_ = {};
    if (!whole) return absl::InvalidArgumentError("the fragments are not a message");
    return messages;
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

#endif  // WAYBILL_CORE_PROTOCOL_FRAMES_H_
