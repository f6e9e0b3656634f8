// SPDX-License-Identifier: Apache-2.0

// The file of decisions, as a controller finds it after a crash, or on a disk that failed.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/control/decision_log.h"
#include "testing/fuzz/fuzz_target.h"

namespace waybill::fuzz {
namespace {

// Nothing here outlives the process, so nothing is synced.
class UnsyncedFile final : public LogFile {
 public:
  int Sync(int) override { return 0; }
};

std::string LogPath() {
  const char* folder = std::getenv("TEST_TMPDIR");
  return absl::StrCat(folder != nullptr ? folder : "/tmp", "/decision_log_fuzz.", ::getpid(),
                      "/decisions");
}

absl::StatusOr<std::unique_ptr<DecisionLog>> Open() {
  return DecisionLog::Open(LogPath(), std::make_unique<UnsyncedFile>());
}

std::string Contents() {
  std::ifstream file(LogPath(), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void Begin(absl::string_view contents) {
  std::filesystem::create_directories(std::filesystem::path(LogPath()).parent_path());
  std::ofstream(LogPath(), std::ios::binary | std::ios::trunc) << contents;
}

std::string LogOf(const std::vector<Decision>& decisions) {
  Begin("");
  const auto log = Open();
  for (const Decision& decision : decisions) (void)(*log)->Append(decision);
  return Contents();
}

}  // namespace

std::vector<std::string> Seeds() {
  const std::string empty = LogOf({});
  const std::string full = LogOf({{1, 1, 10, "a group"}, {1, 2, 11, "a group"}, {2, 1, 12, "b"}});
  const std::string lines = full.substr(0, full.find('\0'));
  return {empty.substr(0, empty.find('\0')), lines, lines.substr(0, lines.size() - 5)};
}

}  // namespace waybill::fuzz

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace waybill;
  using namespace waybill::fuzz;
  Begin({reinterpret_cast<const char*>(data), size});
  std::vector<Decision> found;
  {
    const auto log = Open();
    if (!log.ok()) {
      Require(Contents() == std::string(reinterpret_cast<const char*>(data), size),
              "a log that is refused is left as it is");
      return 0;
    }
    found = (*log)->decisions();
    std::map<std::string, size_t> of_group;
    for (const Decision& decision : found) {
      Require(++of_group[decision.group] <= kDecisionsKept, "a few of each group are kept");
    }
    found.push_back({.epoch = 7, .sequence = 8, .version = 9, .group = "another"});
    Require((*log)->Append(found.back()).first == Recorded::kDurable, "a log takes decisions");
  }
  const auto again = Open();
  Require(again.ok(), "a log that was opened can be opened again");
  Require(
      (*again)->decisions() == found || std::count(found.begin(), found.end(), found.back()) > 1,
      "what was recorded is found again");
  return 0;
}
