// SPDX-License-Identifier: Apache-2.0

#include "core/control/trainer.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/base/steady_now.h"
#include "core/control/mailbox.h"

namespace waybill {

class Trainer::Mailbox final : public waybill::Mailbox {
 public:
  // Under the lock.
  uint64_t version = 0;  // The version that was published last.
  bool left = false;
  bool arrived = false;  // Groups wait for Decide() on that version.
  // The first error among the version's outcomes; null until all outcomes are known.
  std::optional<absl::Status> decided;
  std::map<std::string, GroupOutcome> outcomes;

 private:
  void OnNotice(const Notice& notice) override {
    if (notice.version != version) return;
    const bool failed = notice.kind == Notice::Kind::kPublished && !notice.status.ok();
    arrived = arrived || notice.kind == Notice::Kind::kArrived;
    if (failed || notice.kind == Notice::Kind::kDecided) decided = notice.status;
    if (notice.kind != Notice::Kind::kOutcome) return;
    outcomes[notice.group] = {notice.group, notice.committed, notice.status};
  }
};

Trainer::Trainer(std::shared_ptr<Mailbox> mailbox, std::unique_ptr<TrainerClient> client)
    : mailbox_(std::move(mailbox)), client_(std::move(client)) {}

Trainer::~Trainer() = default;

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Join(const TrainerOptions& options,
                                                       const Manifest& manifest,
                                                       std::vector<MemorySpan> regions,
                                                       std::unique_ptr<Fabric> fabric) {
  auto mailbox = std::make_shared<Mailbox>();
  WAYBILL_ASSIGN_OR_RETURN(
      std::unique_ptr<TrainerClient> client,
      TrainerClient::Create(options.identity, options.engine, manifest, std::move(regions),
                            std::move(fabric),
                            [mailbox, on_notice = options.on_notice](const Notice& notice) {
                              if (on_notice) on_notice(notice);
                              mailbox->Put(notice);
                            }));
  const uint64_t token = mailbox->NewToken();
  client->Join(token, SteadyNow() + options.join_timeout);
  WAYBILL_RETURN_IF_ERROR(
      mailbox->Await(token, options.cancel, [&] { client->Leave(mailbox->NewToken()); }));
  return std::unique_ptr<Trainer>(new Trainer(std::move(mailbox), std::move(client)));
}

absl::Status Trainer::Publish(uint64_t version, const PublishOptions& options) {
  const uint64_t token = mailbox_->NewToken();
  mailbox_->AwaitUntil(absl::InfiniteFuture(), [&] {
    mailbox_->version = version;
    mailbox_->outcomes.clear();
    mailbox_->arrived = false;
    mailbox_->decided.reset();
    return true;
  });
  client_->Publish(token, {.version = version,
                           .deadline = SteadyNow() + options.timeout,
                           .digests_off = options.digests == Digests::kOff,
                           .fail_on_nonfinite = options.fail_on_nonfinite,
                           .hold = options.hold,
                           .hold_commit = options.hold_commit,
                           .max_behind = options.max_behind,
                           .traceparent = options.traceparent});
  return mailbox_->Await(token, options.cancel, [&] { client_->Cancel(token); });
}

absl::Status Trainer::AwaitArrived(absl::Duration timeout) {
  absl::Status status;
  uint64_t version = 0;
  const bool told = mailbox_->AwaitUntil(SteadyNow() + timeout, [&] {
    version = mailbox_->version;
    status = mailbox_->decided.value_or(mailbox_->end());
    return mailbox_->arrived || mailbox_->decided || !status.ok();
  });
  if (told) return status;
  return absl::DeadlineExceededError(absl::StrCat(
      "version ", version, " has not arrived everywhere after ", absl::FormatDuration(timeout)));
}

void Trainer::Decide(const absl::Status& word) {
  mailbox_->AwaitUntil(absl::InfiniteFuture(), [&] {
    client_->Decide(mailbox_->version, word);
    return true;
  });
}

absl::StatusOr<std::vector<GroupOutcome>> Trainer::AwaitOutcome(absl::Duration timeout,
                                                                const std::stop_token& cancel) {
  const std::stop_callback wake(cancel, [this] { mailbox_->Wake(); });
  std::vector<GroupOutcome> outcomes;
  absl::Status status;
  const bool told = mailbox_->AwaitUntil(SteadyNow() + timeout, [&] {
    if (mailbox_->version == 0) {
      status = absl::FailedPreconditionError("await an outcome: nothing was published");
    } else if (mailbox_->decided) {
      for (const auto& [group, outcome] : mailbox_->outcomes) outcomes.push_back(outcome);
      return true;
    } else if (!mailbox_->end().ok()) {
      status = mailbox_->end();
    } else if (mailbox_->left) {
      status = absl::CancelledError("it has left the job");
    } else if (cancel.stop_requested()) {
      status = absl::CancelledError(
          absl::StrCat("await the outcome of version ", mailbox_->version, ": cancelled"));
    }
    return !status.ok();
  });
  if (!status.ok()) return status;
  if (told) return outcomes;
  return absl::DeadlineExceededError(absl::StrCat(
      "await an outcome: not all groups are decided after ", absl::FormatDuration(timeout)));
}

absl::Status Trainer::Release() {
  const uint64_t token = mailbox_->NewToken();
  client_->Release(token);
  return mailbox_->Await(token);
}

void Trainer::Leave() {
  bool again = false;
  mailbox_->AwaitUntil(absl::InfiniteFuture(), [&] {
    again = std::exchange(mailbox_->left, true);
    return true;
  });
  if (again) return;
  const uint64_t token = mailbox_->NewToken();
  client_->Leave(token);
  (void)mailbox_->Await(token);
}

}  // namespace waybill
