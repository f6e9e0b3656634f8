// SPDX-License-Identifier: Apache-2.0

// Records when each stage of an update began and ended on one rank.
#ifndef WAYBILL_CORE_ENGINE_TIMELINE_H_
#define WAYBILL_CORE_ENGINE_TIMELINE_H_

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace waybill {

enum class Stage : uint8_t {
  kExchange,  // The sender computes the maxima of split blocks and trades them.
  kStage,     // The sender copies, casts and quantises.
  kPost,      // The sender posts chunks to the network.
  kWait,      // All chunks are posted, and not all are complete.
  kReceive,   // The receiver is ready, and not all chunks have arrived.
  kVerify,    // The receiver computes and compares digests.
  kCommit,    // The time from the decision until the version is shown.
};
inline constexpr size_t kStageCount = 7;

constexpr absl::string_view Name(Stage stage) {
  constexpr absl::string_view kNames[] = {"exchange", "stage",  "post",  "wait",
                                          "receive",  "verify", "commit"};
  return kNames[static_cast<size_t>(stage)];
}

// Nanoseconds of the steady clock, which all processes of a machine share. Both are 0 if the stage
// did not take place.
struct StageSpan {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
};
using StageSpans = std::array<StageSpan, kStageCount>;

// Widens each span of `to` to cover the same stage's span of `from`.
inline void AddSpans(const StageSpans& from, StageSpans& to) {
  for (size_t i = 0; i < kStageCount; ++i) {
    if (from[i].begin_ns == 0) continue;
    to[i] = {to[i].begin_ns == 0 ? from[i].begin_ns : std::min(to[i].begin_ns, from[i].begin_ns),
             std::max(to[i].end_ns, from[i].end_ns)};
  }
}

// Thread-safe, except for Clear().
class Timeline {
 public:
  void Clear() {
    for (auto& at : begins_) at.store(0, std::memory_order_relaxed);
    for (auto& at : ends_) at.store(0, std::memory_order_relaxed);
    for (auto& ns : cpu_ns_) ns.store(0, std::memory_order_relaxed);
  }

  // Records that a stage begins. Later calls have no effect.
  void Begin(Stage stage) {
    int64_t never = 0;
    begins_[Index(stage)].compare_exchange_strong(never, Now(), std::memory_order_relaxed);
  }
  // Records that a part of a stage has ended. Each call replaces the last one's time.
  void End(Stage stage) { ends_[Index(stage)].store(Now(), std::memory_order_relaxed); }

  // Records that the update is over. The wait began when the last of the stages before it ended.
  void EndWait() {
    int64_t begin = 0;
    for (const Stage stage : {Stage::kExchange, Stage::kStage, Stage::kPost}) {
      begin = std::max(begin, ends_[Index(stage)].load(std::memory_order_relaxed));
    }
    begins_[Index(Stage::kWait)].store(begin, std::memory_order_relaxed);
    End(Stage::kWait);
  }

  // Work whose processor time is added up until Clear().
  enum class Work : uint8_t { kMaxima, kTrade };
  // Runs `run` and adds the processor time that it took on this thread.
  template <typename Do>
  void Charge(Work work, Do run) {
    const int64_t begin = ThreadCpu();
    run();
    cpu_ns_[static_cast<size_t>(work)].fetch_add(ThreadCpu() - begin, std::memory_order_relaxed);
  }
  int64_t cpu_ns(Work work) const {
    return cpu_ns_[static_cast<size_t>(work)].load(std::memory_order_relaxed);
  }

  StageSpans spans() const {
    StageSpans spans;
    for (size_t i = 0; i < kStageCount; ++i) {
      const int64_t begin = begins_[i].load(std::memory_order_relaxed);
      const int64_t end = ends_[i].load(std::memory_order_relaxed);
      if (begin != 0 && end >= begin) spans[i] = {begin, end};
    }
    return spans;
  }

 private:
  static constexpr size_t Index(Stage stage) { return static_cast<size_t>(stage); }
  static int64_t Now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  static int64_t ThreadCpu() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  }

  std::array<std::atomic<int64_t>, kStageCount> begins_{};
  std::array<std::atomic<int64_t>, kStageCount> ends_{};
  std::array<std::atomic<int64_t>, 2> cpu_ns_{};
};

}  // namespace waybill

#endif  // WAYBILL_CORE_ENGINE_TIMELINE_H_
