// SPDX-License-Identifier: Apache-2.0

#include "core/control/worker.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/mailbox.h"
#include "core/control/task_thread.h"

namespace waybill {

// Hands the notices of updates to the handler, and its answers to the client.
class Worker::Mailbox final : public waybill::Mailbox {
 public:
  explicit Mailbox(const WorkerOptions& options) : options_(options) {
    if (options_.handler) notices_ = std::make_unique<TaskThread>();
  }

  void SetClient(WorkerClient* client) {
    const std::lock_guard lock(answers_->mutex);
    answers_->client = client;
  }
  // Stops the handler. When it returns, no handler runs any more.
  void EndNotices() {
    SetClient(nullptr);
    notices_.reset();
  }

  bool left = false;  // Under the lock.

 private:
  void OnNotice(const Notice& notice) override {
    if (notices_ == nullptr || notice.kind < Notice::Kind::kPrepare) return;
    auto answered = std::make_shared<std::atomic_flag>();
    const auto answer = [answers = answers_, answered, kind = notice.kind,
                         update = notice.update](const absl::Status& status) {
      if (answered->test_and_set()) return;
      const std::lock_guard lock(answers->mutex);
      if (answers->client != nullptr) answers->client->Answer(kind, update, status);
    };
    notices_->Do([this, notice, answer] { options_.handler(notice, answer); });
  }

  // Answers may arrive after the worker is destroyed.
  struct Answers {
    std::mutex mutex;
    WorkerClient* client = nullptr;
  };

  const WorkerOptions options_;
  const std::shared_ptr<Answers> answers_ = std::make_shared<Answers>();
  std::unique_ptr<TaskThread> notices_;
};

Worker::Worker(std::shared_ptr<Mailbox> mailbox, std::unique_ptr<WorkerClient> client)
    : mailbox_(std::move(mailbox)), client_(std::move(client)) {}

Worker::~Worker() { Leave(); }

absl::StatusOr<std::unique_ptr<Worker>> Worker::Join(const WorkerOptions& options,
                                                     Manifest manifest,
                                                     const std::vector<MemorySpan>& user_regions,
                                                     std::unique_ptr<Fabric> fabric) {
  auto mailbox = std::make_shared<Mailbox>(options);
  std::set<Notice::Kind> asked;
  if (options.handler) {
    asked = {Notice::Kind::kPrepare, Notice::Kind::kArrived, Notice::Kind::kCommit};
  }
  absl::StatusOr<std::unique_ptr<WorkerClient>> client = WorkerClient::Create(
      options.identity, options.engine, std::move(manifest), user_regions, std::move(asked),
      std::move(fabric),
      [mailbox = mailbox.get(), on_notice = options.on_notice](const Notice& notice) {
        if (on_notice) on_notice(notice);
        mailbox->Put(notice);
      });
  if (!client.ok()) {
    return While(
        absl::StrCat("join job \"", options.identity.job, "\" as worker ", options.identity.rank),
        client.status());
  }
  mailbox->SetClient(client->get());
  std::unique_ptr<Worker> worker(new Worker(mailbox, *std::move(client)));
  const uint64_t token = mailbox->NewToken();
  worker->client_->Join(token, SteadyNow() + options.join_timeout);
  WAYBILL_RETURN_IF_ERROR(
      mailbox->Await(token, options.cancel, [&] { worker->client_->Leave(mailbox->NewToken()); }));
  return worker;
}

void Worker::Leave() {
  bool again = false;
  mailbox_->AwaitUntil(absl::InfiniteFuture(), [&] {
    again = std::exchange(mailbox_->left, true);
    return true;
  });
  if (again) return;
  const uint64_t token = mailbox_->NewToken();
  client_->Leave(token);
  (void)mailbox_->Await(token);
  mailbox_->EndNotices();
}

absl::StatusOr<uint64_t> Worker::Fetch(absl::Duration timeout, uint64_t at_least) {
  const uint64_t token = mailbox_->NewToken();
  client_->Fetch(token, at_least, SteadyNow() + timeout);
  WAYBILL_RETURN_IF_ERROR(mailbox_->Await(token));
  return client_->shown_version();
}

absl::Status Worker::AwaitShown(uint64_t version, absl::Duration timeout) {
  absl::Status end;
  const bool told = mailbox_->AwaitUntil(SteadyNow() + timeout, [&] {
    if (client_->shown_version() >= version) return true;
    end = mailbox_->left ? absl::CancelledError("it has left the job") : mailbox_->end();
    return !end.ok();
  });
  if (client_->shown_version() >= version) return absl::OkStatus();
  if (told) return end;
  return absl::DeadlineExceededError(absl::StrCat(
      "await version ", version, ": ",
      client_->shown_version() == 0 ? std::string("none")
                                    : absl::StrCat("version ", client_->shown_version()),
      " is shown after ", absl::FormatDuration(timeout)));
}

}  // namespace waybill
