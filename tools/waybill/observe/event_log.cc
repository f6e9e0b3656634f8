// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/observe/event_log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/base/json_text.h"
#include "core/base/steady_now.h"
#include "tools/waybill/command_line/printable.h"

namespace waybill {
namespace {

using Json = nlohmann::ordered_json;

// A pipe that can be written takes at least so many bytes (PIPE_BUF): writing them does not wait.
constexpr size_t kMostBytes = 4096;
constexpr int kPollMs = 100;
constexpr size_t kMostOfError = 600;  // Bytes; each may take six in JSON.

// Returns a value of a text line: quoted if it is not one plain word.
std::string Word(const Json& value) {
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  const bool plain = !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 ||
           absl::string_view("_-.:/").find(static_cast<char>(c)) != absl::string_view::npos;
  });
  return plain ? text : Printable(JsonText(text));
}

double Rounded(absl::Duration duration) {
  return static_cast<double>(absl::ToInt64Microseconds(duration)) / 1e6;
}

}  // namespace

EventLog::EventLog(LogFormat format, std::string job, int descriptor, absl::Duration patience)
    : format_(format),
      job_(std::move(job)),
      descriptor_(descriptor),
      patience_(patience),
      thread_([this] { Write(); }) {}

EventLog::~EventLog() {
  {
    const std::lock_guard lock(mutex_);
    ends_at_ = SteadyNow() + patience_;
  }
  changed_.notify_all();
  thread_.join();
}

void EventLog::OnRankJoined(const UpdateWatch::Rank& rank) {
  Add("INFO", "joined", {{"group", rank.group}, {"rank", rank.name}});
}

void EventLog::OnRankGone(const UpdateWatch::Rank& rank) {
  Add("INFO", "gone", {{"group", rank.group}, {"rank", rank.name}});
}

void EventLog::OnUpdateEnded(const UpdateWatch::Progress& update) {
  const bool committed = update.error.empty();
  Fields fields = {{"group", update.group},
                   {"version", update.version},
                   {"outcome", committed ? "committed" : "failed"},
                   {"workers", update.workers},
                   {"seconds", Rounded(update.total)}};
  for (const auto& [name, duration] : update.parts) fields[name] = Rounded(duration);
  if (!committed) fields["error"] = update.error.substr(0, kMostOfError);
  Add(committed ? "INFO" : "WARNING", "update", fields);
}

void EventLog::Add(const char* level, const char* event, const Fields& fields) {
  if (format_ == LogFormat::kNone) return;
  std::string line = Line(level, event, fields);
  const std::lock_guard lock(mutex_);
  if (lines_.size() < kMostLines) {
    lines_.push_back(std::move(line));
    changed_.notify_all();
  } else {
    ++dropped_;
  }
}

std::string EventLog::Line(const char* level, const char* event, const Fields& fields) const {
  const std::string time =
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  std::string line;
  if (format_ == LogFormat::kJson) {
    Fields all = {{"time", time}, {"level", level}, {"event", event}, {"job", job_}};
    for (const auto& [key, value] : fields.items()) {
      if (value != "") all[key] = value;
    }
    line = all.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  } else {
    line = absl::StrCat(time, " ", level, " ", event, " job=", Word(job_));
    for (const auto& [key, value] : fields.items()) {
      if (value != "") absl::StrAppend(&line, " ", key, "=", Word(value));
    }
  }
  return line;
}

void EventLog::Write() {
  // Without a reader, write() fails then, instead of ending the process.
  sigset_t broken;
  sigemptyset(&broken);
  sigaddset(&broken, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &broken, nullptr);
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] {
      return !lines_.empty() || dropped_ > 0 || ends_at_ != absl::InfiniteFuture();
    });
    if (lines_.empty() && dropped_ == 0) return;
    std::string line;
    if (!lines_.empty()) {
      line = std::move(lines_.front());
      lines_.pop_front();
    } else {
      line = Line("WARNING", "dropped", {{"lines", std::exchange(dropped_, 0)}});
    }
    lock.unlock();
    const bool goes_on = WriteLine(line);
    lock.lock();
    if (!goes_on) return;
  }
}

bool EventLog::WriteLine(const std::string& line) {
  const std::string text = absl::StrCat(line.substr(0, kMostBytes - 1), "\n");
  while (true) {
    pollfd writable{.fd = descriptor_, .events = POLLOUT, .revents = 0};
    const int ready = poll(&writable, 1, kPollMs);
    if (ready > 0) return write(descriptor_, text.data(), text.size()) >= 0;
    const std::lock_guard lock(mutex_);
    if (SteadyNow() > ends_at_) return false;
  }
}

}  // namespace waybill
