// SPDX-License-Identifier: Apache-2.0

// What a control stream carries. Messages that wait for the stream travel together, and one that is
// too long for a frame travels in fragments.
//
// A gRPC message is limited to 4 MiB by default, and a manifest, a plan or a buffer with 100,000
// regions is longer. Many short ones cost more to send one by one than all of them together: a
// trainer of a job with 200 groups is told 200 times to start. Frame is a RankFrame or a
// ControllerFrame.
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

// Frames that leave one after the other. Not thread-safe.
template <typename Frame>
class OutgoingFrames {
 public:
  using Message = MessageOf<Frame>;

  // Puts the message behind the others. front() does not change, unless there was none.
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
  // The frame that leaves next. It stays where it is, and as it is, until Pop().
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
    back_bytes_ = kMostFrameBytes;  // Nothing is added to a fragment.
  }

  std::deque<Frame> frames_;
  size_t back_bytes_ = 0;  // Of the messages in the last frame.
};

// Takes the frames of one stream apart. Not thread-safe.
template <typename Frame>
class IncomingFrames {
 public:
  using Message = MessageOf<Frame>;

  explicit IncomingFrames(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Changes the bound on the bytes of one message.
  void SetLimit(size_t most_bytes) { most_bytes_ = most_bytes; }

  // Returns the messages that `frame` completes, in order; none if fragments have to follow.
  //
  // kResourceExhausted: a message is longer than the bound; kInvalidArgument: the fragments are not
  // a message. After an error the stream is of no use.
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
