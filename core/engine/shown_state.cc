// SPDX-License-Identifier: Apache-2.0

#include "core/engine/shown_state.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace waybill {

struct ShownState::Snapshot::Shared {
  struct Hold {
    uint64_t id;
    uint32_t buffer;
    uint64_t version;
    std::string holder;
  };

  mutable std::mutex mutex;
  std::vector<RegionSpans> buffers;  // Never changes.
  std::function<void()> released;
  bool anything = false;
  bool dirty = false;
  bool awaited = false;  // An update waits until no snapshot holds what it writes.
  bool paused = false;
  uint32_t buffer = 0;
  uint64_t version = 0;
  uint64_t last_hold = 0;
  std::vector<Hold> holds;
};

Snapshot::Snapshot(std::shared_ptr<Shared> shared, uint32_t buffer, uint64_t hold, uint64_t version,
                   const RegionSpans* regions)
    : shared_(std::move(shared)),
      buffer_(buffer),
      hold_(hold),
      version_(version),
      regions_(regions) {}

Snapshot& Snapshot::operator=(Snapshot&& other) noexcept {
  if (this != &other) {
    Release();
    shared_ = std::move(other.shared_);
    buffer_ = other.buffer_;
    hold_ = other.hold_;
    version_ = other.version_;
    regions_ = other.regions_;
  }
  return *this;
}

Snapshot::~Snapshot() { Release(); }

void Snapshot::Release() {
  if (shared_ == nullptr) return;
  std::function<void()> released;
  {
    const std::lock_guard lock(shared_->mutex);
    std::erase_if(shared_->holds, [this](const Shared::Hold& h) { return h.id == hold_; });
    released = shared_->released;
  }
  shared_.reset();
  if (released) released();
}

ShownState::ShownState(std::vector<RegionSpans> buffers, std::function<void()> released)
    : shared_(std::make_shared<Snapshot::Shared>()) {
  shared_->buffers = std::move(buffers);
  shared_->released = std::move(released);
}

absl::StatusOr<Snapshot> ShownState::Take(absl::string_view holder) {
  const std::lock_guard lock(shared_->mutex);
  if (shared_->paused) {
    return absl::FailedPreconditionError("take a snapshot: the worker is paused");
  }
  if (shared_->dirty) {
    return absl::UnavailableError(
        absl::StrCat("take a snapshot: the memory is dirty, a version after ", shared_->version,
                     " was being written in place"));
  }
  if (shared_->awaited) {
    return absl::UnavailableError(
        "take a snapshot: an update waits to write the memory, for earlier snapshots to end");
  }
  if (!shared_->anything) {
    return absl::FailedPreconditionError("take a snapshot: no version is shown yet");
  }
  const uint64_t id = ++shared_->last_hold;
  shared_->holds.push_back({id, shared_->buffer, shared_->version, std::string(holder)});
  return Snapshot(shared_, shared_->buffer, id, shared_->version,
                  &shared_->buffers[shared_->buffer]);
}

void ShownState::Show(uint32_t buffer, uint64_t version) {
  const std::lock_guard lock(shared_->mutex);
  shared_->anything = true;
  shared_->dirty = false;
  shared_->buffer = buffer;
  shared_->version = version;
}

bool ShownState::BeginWriting(uint32_t buffer) {
  const std::lock_guard lock(shared_->mutex);
  for (const auto& hold : shared_->holds) {
    if (hold.buffer == buffer) {
      shared_->awaited = true;
      return false;
    }
  }
  shared_->awaited = false;
  return shared_->dirty = true;
}

void ShownState::StopWaiting() {
  const std::lock_guard lock(shared_->mutex);
  shared_->awaited = false;
}

void ShownState::SetDirty(bool dirty) {
  const std::lock_guard lock(shared_->mutex);
  shared_->dirty = dirty;
}

absl::Status ShownState::Pause() {
  const std::lock_guard lock(shared_->mutex);
  for (const auto& hold : shared_->holds) {
    return absl::FailedPreconditionError(absl::StrCat(
        "what is shown is still read: snapshot of version ", hold.version, " by ", hold.holder));
  }
  shared_->paused = true;
  return absl::OkStatus();
}

void ShownState::Resume() {
  const std::lock_guard lock(shared_->mutex);
  shared_->paused = false;
}

bool ShownState::anything_shown() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->anything;
}

uint64_t ShownState::version() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->version;
}

uint32_t ShownState::buffer() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->buffer;
}

bool ShownState::dirty() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->dirty;
}

std::string ShownState::DescribeHolders(uint32_t buffer) const {
  const std::lock_guard lock(shared_->mutex);
  std::string text;
  for (const auto& hold : shared_->holds) {
    if (hold.buffer != buffer) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", "snapshot of version ", hold.version, " by ",
                    hold.holder);
  }
  return text;
}

}  // namespace waybill
