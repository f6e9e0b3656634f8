// SPDX-License-Identifier: Apache-2.0

// What a program does with the C ABI: everything that the command can.
#include "capi/testing/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "capi/handle_table.h"

namespace waybill::capi {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class ModesTest : public testing::TestWithParam<uint32_t> {};

TEST_P(ModesTest, WhatIsPublishedIsShown) {
  Job job({.trainers = 2, .workers = 2, .mode = GetParam()});
  job.Join();
  for (const uint64_t version : {1, 2, 7}) {
    job.Publish(version);
    job.AwaitCommitted(version);
    for (uint32_t w = 0; w < 2; ++w) EXPECT_TRUE(job.Shows(w, version)) << w;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, ModesTest,
                         testing::Values(WAYBILL_MODE_SHADOW, WAYBILL_MODE_SHADOW_COPY,
                                         WAYBILL_MODE_IN_PLACE));

TEST(Job, JoiningCanBeWaitedFor) {
  Job job;
  // Nobody else is there.
  waybill_error_t* error = nullptr;
  const int64_t soon = waybill_now_ns() + 200'000'000;
  ASSERT_EQ(waybill_worker_join_and_wait(job.workers[0], soon, &error), WAYBILL_DEADLINE_EXCEEDED);
  EXPECT_THAT(waybill_error_message(error), HasSubstr("is not whole: waiting for"));
  waybill_error_destroy(error);
  std::thread worker(
      [&] { EXPECT_EQ(waybill_worker_join_and_wait(job.workers[0], 0, nullptr), WAYBILL_OK); });
  EXPECT_EQ(waybill_trainer_join_and_wait(job.trainers[0], 0, &error), WAYBILL_OK);
  EXPECT_EQ(error, nullptr);
  worker.join();
  waybill_event_t event = WAYBILL_EVENT_INIT;  // No JOINED is among the events.
  while (waybill_queue_poll(job.queue, &event, nullptr) == WAYBILL_OK) {
    EXPECT_NE(event.kind, uint32_t{WAYBILL_EVENT_JOINED});
    waybill_event_release(&event);
  }
  job.Publish(1);
  job.AwaitCommitted(1);
}

TEST(Job, ADestroyedRankEndsTheWaitForItsJoin) {
  Job job;
  std::thread joins([&] {
    const auto status = waybill_trainer_join_and_wait(job.trainers[0], 0, nullptr);
    // It was destroyed while it waited, before its join began, or before its handle was looked up.
    EXPECT_TRUE(status == WAYBILL_CANCELLED || status == WAYBILL_FAILED_PRECONDITION ||
                status == WAYBILL_INVALID_ARGUMENT)
        << status;
  });
  waybill_trainer_destroy(job.trainers[0]);
  joins.join();
}

TEST(Job, AWorkersUserIsAskedInOrderAndTold) {
  Job job({.ask = WAYBILL_ASK_PREPARE | WAYBILL_ASK_ARRIVED | WAYBILL_ASK_COMMIT});
  job.Join();
  job.Publish(3);
  for (const uint32_t kind : {WAYBILL_EVENT_PREPARE, WAYBILL_EVENT_ARRIVED, WAYBILL_EVENT_COMMIT}) {
    waybill_event_t event = job.Await(kind);
    EXPECT_EQ(event.version, 3u);
    EXPECT_EQ(event.token, 0u);
    EXPECT_EQ(event.source, uint32_t{WAYBILL_SOURCE_WORKER});
    EXPECT_EQ(event.answer_wanted, 1u);
    EXPECT_EQ(waybill_update_version(event.update), 3u);
    EXPECT_EQ(waybill_update_accept(event.update, kind, nullptr), WAYBILL_OK);
    EXPECT_EQ(waybill_update_accept(event.update, kind, nullptr), WAYBILL_FAILED_PRECONDITION);
    waybill_event_release(&event);
    EXPECT_EQ(event.update, nullptr);
  }
  job.AwaitCommitted(3);
  EXPECT_TRUE(job.Shows(0, 3));
}

TEST(Job, WhatOneWorkerRefusesOrVetoesNobodyShows) {
  Job job({.workers = 2, .ask = WAYBILL_ASK_PREPARE | WAYBILL_ASK_ARRIVED});
  job.Join();
  uint64_t version = 0;
  for (const uint32_t refused : {WAYBILL_EVENT_PREPARE, WAYBILL_EVENT_ARRIVED}) {
    job.Publish(++version);
    bool done = false;
    while (!done) {
      waybill_event_t event = WAYBILL_EVENT_INIT;
      ASSERT_EQ(waybill_queue_wait(job.queue, 0, &event, nullptr), WAYBILL_OK);
      if (event.answer_wanted != 0 && event.kind == refused && event.user == 1) {
        EXPECT_EQ(waybill_update_refuse(event.update, refused, "warming up", nullptr), WAYBILL_OK);
      } else if (event.answer_wanted != 0) {
        EXPECT_EQ(waybill_update_accept(event.update, event.kind, nullptr), WAYBILL_OK);
      } else if (event.kind == WAYBILL_EVENT_OUTCOME) {
        EXPECT_NE(event.status, WAYBILL_OK);
        EXPECT_THAT(waybill_error_message(event.error), HasSubstr("warming up"));
        EXPECT_STREQ(static_cast<const char*>(waybill_blob_data(event.group)), "all");
        done = true;
      }
      waybill_event_release(&event);
    }
    waybill_worker_state_t state = WAYBILL_WORKER_STATE_INIT;
    ASSERT_EQ(waybill_worker_state(job.workers[0], &state, nullptr), WAYBILL_OK);
    EXPECT_EQ(state.shown_version, 0u);
  }
}

TEST(Job, APublishUntilCommittedEndsWhenItIsShown) {
  Job job;
  job.Join();
  job.Fill(1);
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  options.version = 1;
  options.until_committed = 1;
  ASSERT_EQ(waybill_trainer_publish(job.trainers[0], &options, 99, nullptr, nullptr), WAYBILL_OK);
  waybill_event_t event = job.Await(WAYBILL_EVENT_PUBLISHED);
  EXPECT_EQ(event.token, 99u);
  EXPECT_EQ(event.status, WAYBILL_OK);
  EXPECT_TRUE(job.Shows(0, 1));
}

TEST(Job, AVersionThatIsHeldIsReleasedBeforeTheNextIsPublished) {
  Job job;
  job.Join();
  job.Fill(1);
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  options.version = 1;
  options.hold = 1;
  ASSERT_EQ(waybill_trainer_publish(job.trainers[0], &options, 99, nullptr, nullptr), WAYBILL_OK);
  job.AwaitCommitted(1);
  job.Publish(2);
  waybill_event_t refused = job.Await(WAYBILL_EVENT_PUBLISHED);
  EXPECT_STREQ(waybill_error_message(refused.error),
               "publish version 2: version 1 is held; release it first");
  waybill_event_release(&refused);
  ASSERT_EQ(waybill_trainer_release(job.trainers[0], 7, nullptr), WAYBILL_OK);
  waybill_event_t released = job.Await(WAYBILL_EVENT_RELEASED);
  EXPECT_EQ(released.token, 7u);
  EXPECT_EQ(released.status, WAYBILL_OK);
  waybill_event_release(&released);
  job.Publish(2);
  job.AwaitCommitted(2);
  EXPECT_TRUE(job.Shows(0, 2));
}

TEST(Job, AnUpdateThatIsCancelledIsShownByNobodyAndItsVersionCanComeAgain) {
  Job job({.ask = WAYBILL_ASK_PREPARE});
  job.Join();
  waybill_update_t* update = nullptr;
  job.Publish(5, &update);
  waybill_event_t asked = job.Await(WAYBILL_EVENT_PREPARE);
  ASSERT_EQ(waybill_update_cancel(update, nullptr), WAYBILL_OK);
  waybill_event_t published = job.Await(WAYBILL_EVENT_PUBLISHED);
  EXPECT_EQ(published.status, WAYBILL_CANCELLED);
  EXPECT_EQ(waybill_error_scope(published.error), uint32_t{WAYBILL_SCOPE_UPDATE});
  waybill_event_t aborted = job.Await(WAYBILL_EVENT_ABORT);
  EXPECT_EQ(aborted.status, WAYBILL_CANCELLED);
  // Nobody waits for it any more.
  EXPECT_EQ(waybill_update_accept(asked.update, WAYBILL_EVENT_PREPARE, nullptr), WAYBILL_OK);
  for (waybill_event_t* event : {&asked, &published, &aborted}) waybill_event_release(event);
  waybill_update_destroy(update);
  job.Publish(5);
  asked = job.Await(WAYBILL_EVENT_PREPARE);
  EXPECT_EQ(waybill_update_accept(asked.update, WAYBILL_EVENT_PREPARE, nullptr), WAYBILL_OK);
  waybill_event_release(&asked);
  published = job.Await(WAYBILL_EVENT_PUBLISHED);
  EXPECT_EQ(published.status, WAYBILL_OK);
  waybill_event_release(&published);
}

TEST(Job, AVersionThatIsHeldIsShownOrGivenUpByTheAnswerToArrived) {
  Job job;
  job.Join();
  for (const uint64_t version : {1, 2}) {
    job.Fill(version);
    waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
    options.version = version;
    options.hold_commit = 1;
    waybill_update_t* update = nullptr;
    ASSERT_EQ(waybill_trainer_publish(job.trainers[0], &options, version, &update, nullptr),
              WAYBILL_OK);
    EXPECT_EQ(waybill_update_accept(update, WAYBILL_EVENT_ARRIVED, nullptr),
              WAYBILL_INVALID_ARGUMENT);
    waybill_event_t arrived = job.Await(WAYBILL_EVENT_ARRIVED);
    while (arrived.source != WAYBILL_SOURCE_TRAINER) {  // A worker's, that asks nothing.
      waybill_event_release(&arrived);
      arrived = job.Await(WAYBILL_EVENT_ARRIVED);
    }
    EXPECT_EQ(arrived.version, version);
    EXPECT_EQ(arrived.answer_wanted, 1u);
    EXPECT_EQ(waybill_update_cancel(arrived.update, nullptr), WAYBILL_INVALID_ARGUMENT);
    if (version > 1) {  // Otherwise nothing is shown.
      EXPECT_FALSE(job.Shows(0, version));
    }
    const waybill_status_t answered =
        version == 1 ? waybill_update_accept(arrived.update, WAYBILL_EVENT_ARRIVED, nullptr)
                     : waybill_update_refuse(arrived.update, WAYBILL_EVENT_ARRIVED, "no", nullptr);
    EXPECT_EQ(answered, WAYBILL_OK);
    waybill_event_t decided = job.Await(WAYBILL_EVENT_DECIDED);
    EXPECT_EQ(decided.status, version == 1 ? WAYBILL_OK : WAYBILL_FAILED_PRECONDITION);
    EXPECT_TRUE(job.Shows(0, 1));
    waybill_event_release(&arrived);
    waybill_event_release(&decided);
    waybill_update_destroy(update);
  }
}

TEST(Job, AVersionThatIsNotLaterIsRefusedInItsEvent) {
  Job job;
  job.Join();
  job.Publish(2);
  job.AwaitCommitted(2);
  for (const uint64_t version : {2, 1}) {
    job.Publish(version);
    waybill_event_t refused = job.Await(WAYBILL_EVENT_PUBLISHED);
    EXPECT_EQ(refused.token, version);
    EXPECT_EQ(refused.status, WAYBILL_FAILED_PRECONDITION);
    EXPECT_EQ(waybill_error_scope(refused.error), uint32_t{WAYBILL_SCOPE_CALL});
    EXPECT_STREQ(waybill_error_message(refused.error),
                 ("publish version " + std::to_string(version) +
                  ": version 2 was published; versions only grow")
                     .c_str());
    waybill_event_release(&refused);
  }
  EXPECT_TRUE(job.Shows(0, 2));
}

// Takes events until one of that kind and version has come, which it releases; answers those that
// ask. Returns the kinds and versions of all of them.
std::vector<std::pair<uint32_t, uint64_t>> TakeUntil(const Job& job, uint32_t kind,
                                                     uint64_t version) {
  std::vector<std::pair<uint32_t, uint64_t>> taken;
  while (taken.empty() || taken.back() != std::pair(kind, version)) {
    waybill_event_t event = WAYBILL_EVENT_INIT;
    if (waybill_queue_wait(job.queue, 0, &event, nullptr) != WAYBILL_OK) break;
    EXPECT_EQ(event.status, WAYBILL_OK) << waybill_error_message(event.error);
    taken.emplace_back(event.kind, event.version);
    if (event.answer_wanted != 0) {
      EXPECT_EQ(waybill_update_accept(event.update, event.kind, nullptr), WAYBILL_OK);
    }
    waybill_event_release(&event);
  }
  return taken;
}

TEST(Job, APublishWaitsForTheDecisionAboutTheOneBefore) {
  Job job({.ask = WAYBILL_ASK_ARRIVED});
  job.Join();
  job.Publish(1);
  waybill_event_t sent = job.Await(WAYBILL_EVENT_PUBLISHED);
  waybill_event_t asked = job.Await(WAYBILL_EVENT_ARRIVED);
  job.Publish(2);
  // Nobody has answered for version 1: this one waits until its own deadline.
  waybill_publish_options_t hurried = WAYBILL_PUBLISH_OPTIONS_INIT;
  hurried.version = 3;
  hurried.deadline_ns = waybill_now_ns() + 50'000'000;
  ASSERT_EQ(waybill_trainer_publish(job.trainers[0], &hurried, 3, nullptr, nullptr), WAYBILL_OK);
  waybill_event_t late = job.Await(WAYBILL_EVENT_PUBLISHED);
  EXPECT_EQ(late.version, 3u);
  EXPECT_EQ(late.status, WAYBILL_DEADLINE_EXCEEDED);
  EXPECT_EQ(waybill_error_scope(late.error), uint32_t{WAYBILL_SCOPE_UPDATE});
  EXPECT_THAT(waybill_error_message(late.error), HasSubstr("publish version 3"));

  EXPECT_EQ(waybill_update_accept(asked.update, WAYBILL_EVENT_ARRIVED, nullptr), WAYBILL_OK);
  const auto taken = TakeUntil(job, WAYBILL_EVENT_DECIDED, 2);
  const auto position = [&](uint32_t kind, uint64_t version) {
    return std::find(taken.begin(), taken.end(), std::pair(kind, version));
  };
  EXPECT_LT(position(WAYBILL_EVENT_OUTCOME, 1), position(WAYBILL_EVENT_PUBLISHED, 2));
  EXPECT_LT(position(WAYBILL_EVENT_OUTCOME, 2), position(WAYBILL_EVENT_DECIDED, 2));
  EXPECT_TRUE(job.Shows(0, 2));
  for (waybill_event_t* event : {&sent, &asked, &late}) waybill_event_release(event);
}

TEST(Job, ASnapshotOutlivesItsWorker) {
  Job job;
  job.Join();
  job.Publish(4);
  job.AwaitCommitted(4);
  waybill_snapshot_t* snapshot = nullptr;
  ASSERT_EQ(waybill_worker_snapshot(job.workers[0], "eval", &snapshot, nullptr), WAYBILL_OK);
  waybill_worker_destroy(job.workers[0]);
  const void* data = nullptr;
  uint64_t size = 0;
  ASSERT_EQ(waybill_snapshot_region(snapshot, 0, &data, &size, nullptr), WAYBILL_OK);
  EXPECT_EQ(size, Job::kBytes);
  EXPECT_EQ(static_cast<const uint16_t*>(data)[1], 4001);
  EXPECT_EQ(waybill_snapshot_region(snapshot, 1, &data, &size, nullptr), WAYBILL_OUT_OF_RANGE);
  waybill_snapshot_destroy(snapshot);
}

TEST(Job, ParentsMayGoFirst) {
  Job job;
  job.Join();
  waybill_context_destroy(job.context);
  waybill_controller_destroy(job.controller);
  waybill_event_t lost = job.Await(WAYBILL_EVENT_DISCONNECTED);
  EXPECT_NE(lost.status, WAYBILL_OK);
  waybill_event_release(&lost);
  waybill_queue_destroy(job.queue);
}

TEST(Job, ARegionThatIsTakenBackEndsTheRanksThatUseIt) {
  Job job({.mode = WAYBILL_MODE_IN_PLACE, .ask = WAYBILL_ASK_PREPARE});
  job.Join();
  job.Publish(1);
  waybill_event_t asked = job.Await(WAYBILL_EVENT_PREPARE);
  waybill_event_release(&asked);
  waybill_region_destroy(job.trainer_regions[0]);
  waybill_event_t published = job.Await(WAYBILL_EVENT_PUBLISHED);
  EXPECT_EQ(published.status, WAYBILL_CANCELLED);
  waybill_event_release(&published);
  waybill_region_destroy(job.worker_regions[0]);
  EXPECT_EQ(waybill_worker_join(job.workers[0], 0, 0, nullptr), WAYBILL_FAILED_PRECONDITION);
}

void StartController(Job& job, const char* name) {
  waybill_controller_options_t options = WAYBILL_CONTROLLER_OPTIONS_INIT;
  options.listen = job.address.c_str();
  options.job = name;
  options.token = "a secret of the job";
  ASSERT_EQ(waybill_controller_start(job.context, &options, &job.controller, nullptr), WAYBILL_OK);
}

TEST(Job, RanksComeBackByThemselvesToAControllerThatIsThereAgain) {
  Job job;
  job.Join();
  job.Publish(1);
  job.AwaitCommitted(1);
  waybill_controller_destroy(job.controller);
  waybill_event_t lost[2];
  for (waybill_event_t& event : lost) {
    event = job.Await(WAYBILL_EVENT_DISCONNECTED);
    EXPECT_EQ(event.status, WAYBILL_UNAVAILABLE);
    EXPECT_THAT(waybill_error_message(event.error), HasSubstr(job.address));
    EXPECT_EQ(event.token, 0u);
    EXPECT_EQ(event.answer_wanted, 0u);
    EXPECT_EQ(event.update, nullptr);
  }
  EXPECT_NE(lost[0].source, lost[1].source);
  for (waybill_event_t& event : lost) waybill_event_release(&event);
  EXPECT_TRUE(job.Shows(0, 1));
  job.Publish(2);  // Waits for the controller.
  StartController(job, "capi");
  const auto taken = TakeUntil(job, WAYBILL_EVENT_OUTCOME, 2);
  EXPECT_EQ(std::count(taken.begin(), taken.end(),
                       std::pair<uint32_t, uint64_t>(WAYBILL_EVENT_RECONNECTED, 0)),
            2);
  for (const auto& [kind, version] : taken) {
    EXPECT_NE(kind, uint32_t{WAYBILL_EVENT_DISCONNECTED});
    EXPECT_NE(kind, uint32_t{WAYBILL_EVENT_ENDED});
  }
  EXPECT_TRUE(job.Shows(0, 2));
}

TEST(Job, ARankThatTheControllerDismissesIsTold) {
  Job job;
  job.Join();
  waybill_controller_destroy(job.controller);
  StartController(job, "another");
  for (int ranks = 0; ranks < 2; ++ranks) {
    waybill_event_t lost = job.Await(WAYBILL_EVENT_DISCONNECTED);
    waybill_event_release(&lost);
    waybill_event_t ended = job.Await(WAYBILL_EVENT_ENDED);
    EXPECT_EQ(ended.status, WAYBILL_INVALID_ARGUMENT);
    waybill_event_release(&ended);
  }
}

TEST(Job, LeavingEndsWithItsEvent) {
  Job job;
  job.Join();
  job.Publish(1);
  job.AwaitCommitted(1);
  ASSERT_EQ(waybill_worker_leave(job.workers[0], 5, nullptr), WAYBILL_OK);
  waybill_event_t left = job.Await(WAYBILL_EVENT_LEFT);
  EXPECT_EQ(left.token, 5u);
  EXPECT_EQ(left.status, WAYBILL_OK);
  EXPECT_TRUE(job.Shows(0, 1));
  EXPECT_EQ(waybill_worker_leave(job.workers[0], 5, nullptr), WAYBILL_FAILED_PRECONDITION);
}

TEST(Job, ProgressAndDescriptionsAreOfWhatHappened) {
  Job job({.trainers = 2});
  job.Join();
  job.Publish(6);
  job.AwaitCommitted(6);
  waybill_progress_t progress = WAYBILL_PROGRESS_INIT;
  ASSERT_EQ(waybill_trainer_progress(job.trainers[0], &progress, nullptr), WAYBILL_OK);
  EXPECT_EQ(progress.version, 6u);
  EXPECT_EQ(progress.bytes, Job::kBytes / 2);
  EXPECT_EQ(progress.planned_bytes, Job::kBytes / 2);
  EXPECT_GT(progress.end_ns[WAYBILL_STAGE_STAGE], 0);
  ASSERT_EQ(waybill_worker_progress(job.workers[0], &progress, nullptr), WAYBILL_OK);
  EXPECT_EQ(progress.bytes, Job::kBytes);
  waybill_blob_t* text = nullptr;
  ASSERT_EQ(waybill_trainer_describe(job.trainers[1], &text, nullptr), WAYBILL_OK);
  const json trainer = json::parse(TakeBlob(text));
  EXPECT_EQ(trainer["rank"], 1);
  EXPECT_EQ(trainer["groups"], json::array({"all"}));
  EXPECT_FALSE(trainer.contains("rack"));
  EXPECT_THAT(trainer["lanes"][0]["path"].get<std::string>(), HasSubstr("local"));
  ASSERT_EQ(waybill_worker_describe(job.workers[0], &text, nullptr), WAYBILL_OK);
  EXPECT_EQ(json::parse(TakeBlob(text))["shown_version"], 6);
  ASSERT_EQ(waybill_controller_status(job.controller, &text, nullptr), WAYBILL_OK);
  json status = json::parse(TakeBlob(text));
  EXPECT_EQ(status["committed_version"], 6);
  ASSERT_EQ(waybill_controller_query(job.context, job.address.c_str(), "a secret of the job", 0,
                                     &text, nullptr),
            WAYBILL_OK);
  json queried = json::parse(TakeBlob(text));
  EXPECT_EQ(queried["ranks"].size(), status["ranks"].size());
  for (json* either : {&status, &queried}) either->erase("ranks");  // They report when they like.
  EXPECT_EQ(queried, status);
  ASSERT_EQ(waybill_job_tensors(job.context, job.address.c_str(), "a secret of the job", 0, &text,
                                nullptr),
            WAYBILL_OK);
  const json tensors = json::parse(TakeBlob(text))["tensors"];
  ASSERT_EQ(tensors.size(), 1u) << tensors;
  EXPECT_EQ(tensors[0]["name"], "weight");
  ASSERT_EQ(waybill_context_describe(job.context, &text, nullptr), WAYBILL_OK);
  EXPECT_TRUE(json::parse(TakeBlob(text))["fabrics"]["local"]["available"]);
  ASSERT_EQ(waybill_trainer_leave(job.trainers[0], 0, nullptr), WAYBILL_OK);
  waybill_event_t left = job.Await(WAYBILL_EVENT_LEFT);
  waybill_event_release(&left);
  ASSERT_EQ(waybill_trainer_progress(job.trainers[0], &progress, nullptr), WAYBILL_OK);
  EXPECT_EQ(progress.bytes, Job::kBytes / 2);
}

TEST(Job, TheManifestOfARankSaysWhichRackItsHostIsIn) {
  Job job({.rack = "leaf-1"});
  waybill_blob_t* text = nullptr;
  ASSERT_EQ(waybill_trainer_describe(job.trainers[0], &text, nullptr), WAYBILL_OK);
  EXPECT_EQ(json::parse(TakeBlob(text))["rack"], "leaf-1");
  ASSERT_EQ(waybill_worker_describe(job.workers[0], &text, nullptr), WAYBILL_OK);
  EXPECT_EQ(json::parse(TakeBlob(text))["rack"], "leaf-1");
  job.Join();
  job.Publish(1);
  job.AwaitCommitted(1);
  EXPECT_TRUE(job.Shows(0, 1));
}

TEST(Context, ExaminesThisHost) {
  waybill_context_t* context = nullptr;
  ASSERT_EQ(waybill_context_create(nullptr, &context, nullptr), WAYBILL_OK);
  waybill_blob_t* text = nullptr;
  ASSERT_EQ(waybill_context_examine(context, &text, nullptr), WAYBILL_OK);
  const json findings = json::parse(TakeBlob(text));
  ASSERT_FALSE(findings.empty());
  for (const json& finding : findings) {
    EXPECT_THAT(finding["level"].get<std::string>(), testing::AnyOf("good", "note", "bad"));
    EXPECT_FALSE(finding["found"].get<std::string>().empty());
  }
  waybill_context_destroy(context);
}

bool IsReadable(int descriptor) {
  pollfd entry{.fd = descriptor, .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

TEST(Queue, ItsDescriptorIsReadableAsLongAsThereAreEvents) {
  Job job;
  const int descriptor = waybill_queue_fd(job.queue);
  waybill_event_t event = WAYBILL_EVENT_INIT;
  EXPECT_FALSE(IsReadable(descriptor));
  EXPECT_EQ(waybill_queue_poll(job.queue, &event, nullptr), WAYBILL_NOT_FOUND);
  EXPECT_EQ(waybill_queue_wait(job.queue, 1, &event, nullptr), WAYBILL_DEADLINE_EXCEEDED);
  for (const uint64_t token : {7, 8}) {
    ASSERT_EQ(waybill_queue_post(job.queue, token, nullptr), WAYBILL_OK);
  }
  for (const uint64_t token : {7, 8}) {
    EXPECT_TRUE(IsReadable(descriptor));
    ASSERT_EQ(waybill_queue_poll(job.queue, &event, nullptr), WAYBILL_OK);
    EXPECT_EQ(event.token, token);
    EXPECT_EQ(event.kind, uint32_t{WAYBILL_EVENT_POSTED});
  }
  EXPECT_FALSE(IsReadable(descriptor));
}

TEST(Plan, IsMadeAndExplainedWithoutAnyNetwork) {
  waybill_layout_options_t options = WAYBILL_LAYOUT_OPTIONS_INIT;
  options.model = "qwen3-0.6b";
  options.layers = 2;
  waybill_layout_t* layout = nullptr;
  ASSERT_EQ(waybill_layout_open(&options, &layout, nullptr), WAYBILL_OK);
  waybill_manifest_t* trainers[2] = {};
  waybill_manifest_t* workers[2] = {};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ASSERT_EQ(waybill_layout_trainer_manifest(layout, "fsdp=2", rank, &trainers[rank], nullptr), 0);
    ASSERT_EQ(waybill_layout_worker_manifest(layout, "tp=2", rank, "fp8-block", "", &workers[rank],
                                             nullptr),
              WAYBILL_OK);
  }
  waybill_plan_options_t planning = WAYBILL_PLAN_OPTIONS_INIT;
  planning.trainers = trainers;
  planning.workers = workers;
  planning.trainer_count = planning.worker_count = 2;
  waybill_plan_t* plan = nullptr;
  ASSERT_EQ(waybill_plan_build(&planning, &plan, nullptr), WAYBILL_OK);
  waybill_plan_summary_t summary = WAYBILL_PLAN_SUMMARY_INIT;
  ASSERT_EQ(waybill_plan_summarise(plan, &summary, nullptr), WAYBILL_OK);
  EXPECT_GT(summary.bytes, 0u);
  waybill_blob_t* text = nullptr;
  ASSERT_EQ(waybill_plan_explain(plan, "routes", &text, nullptr), WAYBILL_OK);
  const json explained = json::parse(TakeBlob(text));
  EXPECT_EQ(explained["bytes"], summary.bytes);
  uint64_t routes = 0;
  for (const json& trainer : explained["trainers"]) routes += trainer["table"].size();
  EXPECT_EQ(routes, summary.routes);
  ASSERT_EQ(waybill_plan_explain(plan, "text", &text, nullptr), WAYBILL_OK);
  EXPECT_THAT(TakeBlob(text), HasSubstr("busiest rank / lower bound"));
  // As bytes and back: the same.
  waybill_blob_t* bytes = nullptr;
  ASSERT_EQ(waybill_manifest_encode(workers[0], &bytes, nullptr), WAYBILL_OK);
  waybill_manifest_t* copy = nullptr;
  ASSERT_EQ(
      waybill_manifest_decode(waybill_blob_data(bytes), waybill_blob_size(bytes), &copy, nullptr),
      WAYBILL_OK);
  waybill_blob_t* again = nullptr;
  ASSERT_EQ(waybill_manifest_encode(copy, &again, nullptr), WAYBILL_OK);
  EXPECT_EQ(TakeBlob(bytes), TakeBlob(again));
  waybill_manifest_destroy(copy);
  waybill_plan_destroy(plan);
  for (waybill_manifest_t* m : {trainers[0], trainers[1], workers[0], workers[1]}) {
    waybill_manifest_destroy(m);
  }
  waybill_layout_destroy(layout);
}

// Last: what the tests before it made is gone.
TEST(Zz, NoHandleIsLeft) { EXPECT_EQ(HandleTable::Instance().size(), 0u); }

}  // namespace
}  // namespace waybill::capi
