// SPDX-License-Identifier: Apache-2.0

// Tests what is logged: how a rank has joined, that it has lost the controller, and from which
// thread.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "capi/testing/job.h"
#include "capi/waybill.h"

namespace waybill::capi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Line {
  uint32_t level = 0;
  std::string text;
  std::thread::id thread;
};

class Sink {
 public:
  static void Take(void* user, uint32_t level, const char* line) {
    Sink& sink = *static_cast<Sink*>(user);
    const std::lock_guard lock(sink.mutex_);
    sink.lines_.push_back({level, line, std::this_thread::get_id()});
    sink.changed_.notify_all();
  }
  // The first line of that level that is about `what`.
  Line Await(uint32_t level, const std::string& what) {
    std::unique_lock lock(mutex_);
    for (size_t next = 0;; ++next) {
      changed_.wait(lock, [&] { return lines_.size() > next; });
      const Line& line = lines_[next];
      if (line.level == level && line.text.find(what) != std::string::npos) return line;
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Line> lines_;
};

TEST(Log, TellsHowARankHasJoinedAndThatItLostTheController) {
  constexpr uint32_t kInformation = 1, kWarning = 2;
  Sink sink;
  Job job({.log_sink = Sink::Take, .log_user = &sink});
  job.Join();
  const Line joined = sink.Await(kInformation, "trainer 0 of 1 of job");
  EXPECT_THAT(joined.text, AllOf(HasSubstr("has joined; "), HasSubstr("worker 0: ")));
  EXPECT_NE(joined.thread, std::this_thread::get_id());
  sink.Await(kInformation, "worker 0 of 1 of job");

  waybill_controller_destroy(job.controller);
  const Line lost = sink.Await(kWarning, "worker 0 of 1 of job");
  EXPECT_THAT(lost.text, HasSubstr("has lost the controller, and tries to come back: "));
  EXPECT_NE(lost.thread, std::this_thread::get_id());
}

TEST(Log, TellsOnceThatTheControllerCannotBeReached) {
  constexpr uint32_t kWarning = 2;
  Sink sink;
  Job job({.log_sink = Sink::Take, .log_user = &sink});
  waybill_controller_destroy(job.controller);
  ASSERT_EQ(waybill_trainer_join(job.trainers[0], 0, 0, nullptr), WAYBILL_OK);
  const Line told = sink.Await(kWarning, "trainer 0 of 1 of job");
  EXPECT_THAT(told.text, AllOf(HasSubstr("cannot reach its controller, and tries again: "),
                               HasSubstr(job.address)));
}

}  // namespace
}  // namespace waybill::capi
