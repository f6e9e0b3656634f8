#include "tools/waybill/page.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "tools/waybill/page_source.h"

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
  const std::string text = absl::StrReplaceAll(
      data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace), {{"<", "\\u003c"}});
  std::string page(kPageHtml);
  const auto fill = [&page](absl::string_view mark, absl::string_view with) {
    const size_t at = page.find(std::string(mark));
    page.replace(at, mark.size(), std::string(with));
  };
  fill("/*STYLE*/", kPageStyle);
  fill("/*DATA*/", text);
  fill("/*SCRIPT*/", kPageScript);
  return page;
}

absl::Status WritePage(const std::string& path, const nlohmann::json& data) {
  const std::string temporary = path + ".part";
  const auto fail = [&] {
    const int error = errno;
    std::remove(temporary.c_str());
    return absl::UnavailableError(
        absl::StrCat("write the page ", path, ": ", std::strerror(error)));
  };
  errno = 0;
  std::ofstream file(temporary, std::ios::binary);
  file << MakePage(data);
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) return fail();
  return absl::OkStatus();
}

}  // namespace waybill
