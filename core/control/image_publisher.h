// SPDX-License-Identifier: Apache-2.0

// Publishes versions from an image of the tensors, so that these may change while the versions are
// on their way.
#ifndef WAYBILL_CORE_CONTROL_IMAGE_PUBLISHER_H_
#define WAYBILL_CORE_CONTROL_IMAGE_PUBLISHER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "core/engine/image.h"
#include "core/engine/staging_area.h"
#include "core/protocol/rank_session.h"
#include "core/protocol/trainer_session.h"

namespace waybill {

// Stands between a trainer's user and its session. A publish waits until nobody reads the image,
// which holds the version before; then the tensors are copied, and the session publishes the image
// and holds it, until the next version takes its place. The user is told kPublished when the copy
// is complete, unless the publish is until_committed or has a max_behind; what fails afterwards is
// told by kDecided.
//
// Lives on the progress thread. Every call may give notices to `tell`.
class ImagePublisher {
 public:
  // The session outlives the publisher, and publishes from the image's regions.
  ImagePublisher(std::unique_ptr<Image> image, TrainerSession* session,
                 std::function<void(Notice)> tell)
      : image_(std::move(image)), session_(*session), tell_(std::move(tell)) {}

  // The commands of TrainerSession; call Step() after each. PublishCommand::hold has no effect:
  // every version is held.
  void Publish(uint64_t token, const PublishCommand& command);
  void Proceed(uint64_t token, const absl::Status& done);
  void Cancel(uint64_t token, absl::Time now);
  // Ends the publishes that wait. Nothing reads the tensors when it returns.
  void Leave();

  // Takes a notice of the session, and tells what concerns the user.
  void OnNotice(Notice notice);
  // Makes progress.
  void Step(absl::Time now);
  // Returns the version that is sent, and the one before if it is kept.
  VersionsInMemory versions() const {
    return {.newest = image_->regions(),
            .image = image_->copies(),
            .version_before = image_->version_before(),
            .before = image_->regions_before()};
  }
  const Image& image() const { return *image_; }
  // Returns the time at which Step() must be called again, even if no copy ends.
  absl::Time next_deadline() const;

 private:
  enum class State : uint8_t {
    kFree,       // Nobody reads the image.
    kCopying,    // The tensors are being copied for the first publish that waits.
    kSending,    // The session sends the image; `sending_` says for which publish.
    kHeld,       // The session is done with that publish, and may hold the version.
    kReleasing,  // The session is told to let go of the version.
  };
  // A publish whose image is not complete.
  struct Waiting {
    uint64_t token = 0;
    PublishCommand command;
    absl::Status status;  // The error with which it ends once the copy has ended.
  };
  // The publish that the session has.
  struct Sending {
    uint64_t token = 0;
    bool told = false;  // The user was told kPublished.
  };

  bool IsCopying(const Waiting& publish) const {
    return state_ == State::kCopying && publish.token == waiting_.front().token;
  }
  void End(const Waiting& publish, const absl::Status& status);
  // Ends a publish that is not being copied; another one when its copy has ended.
  void EndWaiting(uint64_t token, const absl::Status& status);
  void EndLate(absl::Time now);
  void HandOver(const absl::Status& copied, absl::Time now);

  const std::unique_ptr<Image> image_;
  TrainerSession& session_;
  const std::function<void(Notice)> tell_;
  std::deque<Waiting> waiting_;
  State state_ = State::kFree;
  Sending sending_;  // While the state is kSending.
};

}  // namespace waybill

#endif  // WAYBILL_CORE_CONTROL_IMAGE_PUBLISHER_H_
