// SPDX-License-Identifier: Apache-2.0

#include "core/layout/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/layout/bounded_json.h"

namespace waybill {
namespace {

using nlohmann::json;

constexpr absl::string_view kExtension = ".safetensors";
constexpr absl::string_view kIndexName = "model.safetensors.index.json";

absl::Status Invalid(const std::string& message) { return absl::InvalidArgumentError(message); }

bool Exists(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || text.str().empty()) {
    return absl::NotFoundError(absl::StrCat("read \"", path, "\": it cannot be read or is empty"));
  }
  return std::move(text).str();
}

// Tensor by tensor, the file that the index says it is in.
absl::StatusOr<std::map<std::string, std::string>> ParseIndex(absl::string_view text) {
  std::string twice;
  std::set<std::string> seen;
  const auto look = [&](int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::key && depth == 2 && !seen.insert(value.dump()).second) {
      twice = value.get<std::string>();
    }
  };
  WAYBILL_ASSIGN_OR_RETURN(const json index, ParseBoundedJson(text, look));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return Invalid("not a JSON object with a \"weight_map\" object");
  }
  if (!twice.empty()) return Invalid(absl::StrCat("\"", twice, "\" is there twice"));
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string() || !absl::EndsWith(file.get<std::string>(), kExtension) ||
        absl::StrContains(file.get<std::string>(), '/')) {
      return Invalid(absl::StrCat("tensor \"", tensor, "\": ", ShortText(file),
                                  " is not a name ending with ", kExtension));
    }
    files.emplace(tensor, file.get<std::string>());
  }
  return files;
}

absl::StatusOr<std::vector<std::string>> FilesWithoutIndex(const std::string& directory) {
  if (Exists(absl::StrCat(directory, "/model.safetensors"))) return {{"model.safetensors"}};
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator at(directory, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    std::string name = at->path().filename().string();
    if (absl::EndsWith(name, kExtension)) names.push_back(std::move(name));
  }
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("open checkpoint \"", directory, "\": ", error.message()));
  }
  if (names.empty()) {
    return absl::NotFoundError(
        absl::StrCat("open checkpoint \"", directory, "\": no *", kExtension, " file is there"));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& directory) {
  Checkpoint checkpoint;
  if (const std::string path = absl::StrCat(directory, "/config.json"); Exists(path)) {
    WAYBILL_ASSIGN_OR_RETURN(checkpoint.config_json_, ReadText(path));
    auto config = ParseModelConfig(checkpoint.config_json_);
    if (!config.ok()) return While(absl::StrCat("read \"", path, "\""), config.status());
    checkpoint.config_ = *std::move(config);
  } else {
    checkpoint.config_ = ModelConfig::Generic("there is no config.json");
  }

  const std::string index_path = absl::StrCat(directory, "/", kIndexName);
  std::map<std::string, std::string> index;
  std::vector<std::string> names;
  const bool has_index = Exists(index_path);
  if (has_index) {
    WAYBILL_ASSIGN_OR_RETURN(const std::string text, ReadText(index_path));
    auto parsed = ParseIndex(text);
    if (!parsed.ok()) return While(absl::StrCat("read \"", index_path, "\""), parsed.status());
    index = *std::move(parsed);
    std::set<std::string> unique;
    for (const auto& [tensor, file] : index) unique.insert(file);
    names.assign(unique.begin(), unique.end());
  } else {
    WAYBILL_ASSIGN_OR_RETURN(names, FilesWithoutIndex(directory));
  }

  std::map<absl::string_view, absl::string_view> file_of;
  for (const std::string& name : names) {
    auto file = SafetensorsFile::Open(absl::StrCat(directory, "/", name));
    if (!file.ok()) return std::move(file).status();
    for (const CheckpointTensor& tensor : file->tensors()) {
      const auto [earlier, is_new] = file_of.emplace(tensor.name, name);
      if (!is_new) {
        return Invalid(absl::StrCat("open checkpoint \"", directory, "\": tensor \"", tensor.name,
                                    "\" is in both ", earlier->second, " and ", name));
      }
      if (const auto told = index.find(tensor.name);
          has_index && (told == index.end() || told->second != name)) {
        return Invalid(absl::StrCat(
            "read \"", index_path, "\": tensor \"", tensor.name, "\" is in ", name, ", the index ",
            told == index.end() ? "does not name it" : absl::StrCat("says ", told->second)));
      }
      checkpoint.tensors_.push_back(tensor);
    }
    checkpoint.files_.push_back(*std::move(file));
  }
  for (const auto& [tensor, file] : index) {
    if (!file_of.contains(tensor)) {
      return Invalid(absl::StrCat("read \"", index_path, "\": tensor \"", tensor, "\" is not in ",
                                  file, " as the index says"));
    }
  }
  std::sort(checkpoint.tensors_.begin(), checkpoint.tensors_.end(),
            [](const CheckpointTensor& a, const CheckpointTensor& b) { return a.name < b.name; });
  return checkpoint;
}

const CheckpointTensor* Checkpoint::Find(absl::string_view name) const {
  const auto at = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const CheckpointTensor& tensor, absl::string_view n) { return tensor.name < n; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

}  // namespace waybill
