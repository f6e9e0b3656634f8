// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/page/page.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/base/json_text.h"
#include "core/base/new_file.h"
#include "core/base/unique_fd.h"
#include "tools/waybill/page/page_source.h"

namespace waybill {

void AddTraffic(const simulate::Traffic& traffic, nlohmann::json& data) {
  const auto add = [&data](const char* name, const std::vector<simulate::PairTraffic>& pairs) {
    nlohmann::json& list = data[name] = nlohmann::json::array();
    for (const simulate::PairTraffic& pair : pairs) {
      list.push_back({pair.trainer, pair.worker, pair.bytes});
    }
  };
  add("pairs", traffic.pairs);
  add("relays", traffic.relays);
}

std::string MakePage(const nlohmann::json& data) {
  // Within a script element, "</" would end it, and "<!--" would begin a comment.
  const std::string text = absl::StrReplaceAll(JsonText(data), {{"<", "\\u003c"}});
  std::string page;
  absl::string_view rest = kPageHtml;
  // From front to back, because `text` may contain a mark.
  const auto fill = [&](absl::string_view mark, absl::string_view with) {
    const size_t at = rest.find(mark);
    absl::StrAppend(&page, rest.substr(0, at), with);
    rest.remove_prefix(at + mark.size());
  };
  fill("/*STYLE*/", kPageStyle);
  fill("/*DATA*/", text);
  fill("/*SCRIPT*/", kPageScript);
  return absl::StrCat(page, rest);
}

absl::Status WritePage(const std::string& path, const nlohmann::json& data) {
  const std::string temporary = path + ".part";
  const auto fail = [&] {
    const int error = errno;
    std::remove(temporary.c_str());
    return absl::UnavailableError(
        absl::StrCat("write the page ", path, ": ", std::strerror(error)));
  };
  const UniqueFd file = OpenNewFile(temporary);
  if (!file.valid()) return fail();
  const std::string page = MakePage(data);
  for (absl::string_view rest = page; !rest.empty();) {
    const ssize_t written = write(file.get(), rest.data(), rest.size());
    if (written < 0) return fail();
    rest.remove_prefix(static_cast<size_t>(written));
  }
  return std::rename(temporary.c_str(), path.c_str()) == 0 ? absl::OkStatus() : fail();
}

}  // namespace waybill
