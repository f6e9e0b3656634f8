// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/archive/archive.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/layout/safetensors_writer.h"

namespace waybill {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kPrefix = "version-";
constexpr absl::string_view kUnfinished = ".part";
// The endings of files with weights, or with what says where weights are.
constexpr absl::string_view kWeights[] = {".safetensors", ".bin",  ".pt",  ".pth",
                                          ".gguf",        ".onnx", ".h5",  ".msgpack",
                                          ".index.json",  ".ckpt", ".npz", ".part"};

absl::Status Failed(absl::string_view operation, const std::string& path, int error) {
  return absl::Status(absl::ErrnoToStatusCode(error),
                      absl::StrCat(operation, " \"", path, "\": ", std::strerror(error)));
}

absl::Status Sync(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() || fsync(fd.get()) != 0) return Failed("sync", path, errno);
  return absl::OkStatus();
}

// Returns the version that a folder of this name holds; nullopt if it holds none.
std::optional<uint64_t> VersionOf(absl::string_view name, absl::string_view ending) {
  uint64_t version = 0;
  if (!absl::ConsumePrefix(&name, kPrefix) || !absl::ConsumeSuffix(&name, ending)) return {};
  if (name.empty() || name[0] == '0' || !absl::SimpleAtoi(name, &version)) return {};
  return version;
}

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator at(folder, error);
  for (; !error && at != fs::directory_iterator(); at.increment(error)) {
    names.push_back(at->path().filename().string());
  }
  if (error) return Failed("list", folder, error.value());
  return names;
}

}  // namespace

std::vector<std::vector<CheckpointTensor>> DealTensors(absl::Span<const CheckpointTensor> tensors,
                                                       uint32_t parts) {
  std::vector<const CheckpointTensor*> by_size;
  by_size.reserve(tensors.size());
  for (const CheckpointTensor& tensor : tensors) by_size.push_back(&tensor);
  std::sort(by_size.begin(), by_size.end(), [](const auto* a, const auto* b) {
    const uint64_t of_a = a->size_bytes(), of_b = b->size_bytes();
    return of_a != of_b ? of_a > of_b : a->name < b->name;
  });
  std::vector<std::vector<CheckpointTensor>> dealt(parts);
  std::set<std::pair<uint64_t, uint32_t>> loads;  // The bytes of each part, and which it is.
  for (uint32_t part = 0; part < parts; ++part) loads.emplace(0, part);
  for (const CheckpointTensor* tensor : by_size) {
    const auto [bytes, part] = *loads.begin();
    loads.erase(loads.begin());
    loads.emplace(bytes + tensor->size_bytes(), part);
    dealt[part].push_back(*tensor);
  }
  return dealt;
}

absl::StatusOr<Archive> Archive::Open(std::string folder, const std::string& others) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!fs::is_directory(folder)) {
    return absl::FailedPreconditionError(
        absl::StrCat("archive \"", folder, "\": ", error ? error.message() : "it is no folder"));
  }
  std::vector<std::string> files;
  if (!others.empty()) {
    WAYBILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(others));
    for (const std::string& name : names) {
      std::string path = absl::StrCat(others, "/", name);
      const bool weights = std::any_of(std::begin(kWeights), std::end(kWeights),
                                       [&](auto ending) { return absl::EndsWith(name, ending); });
      if (!weights && fs::is_regular_file(path)) files.push_back(std::move(path));
    }
  }
  return Archive(std::move(folder), std::move(files));
}

std::string Archive::FolderOf(uint64_t version) const {
  return absl::StrCat(folder_, "/", kPrefix, version);
}

absl::StatusOr<std::vector<uint64_t>> Archive::Versions() const {
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder_));
  std::vector<uint64_t> versions;
  for (const std::string& name : names) {
    if (const auto version = VersionOf(name, "")) versions.push_back(*version);
  }
  std::sort(versions.begin(), versions.end());
  return versions;
}

absl::StatusOr<bool> Archive::Write(uint64_t version, uint32_t part,
                                    absl::Span<const std::vector<CheckpointTensor>> parts) const {
  const std::string folder = absl::StrCat(FolderOf(version), kUnfinished);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) return Failed("make", folder, error.value());
  // The first part has the other files with it, so that whoever writes the last one knows that all
  // is there.
  if (part == 0) {
    for (const std::string& from : others_) {
      const std::string to = absl::StrCat(folder, "/", fs::path(from).filename().string());
      fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
      if (error) return Failed("copy to", to, error.value());
      WAYBILL_RETURN_IF_ERROR(Sync(to));
    }
    std::vector<IndexedFile> index;
    index.reserve(parts.size());
    for (size_t i = 0; i < parts.size(); ++i)
      index.push_back({FileName(i, parts.size()), parts[i]});
    WAYBILL_RETURN_IF_ERROR(WriteIndex(folder, index, Durability::kSynced));
  }
  // A part has its name once it is on the disk: when the last one has it, another process may give
  // the folder its own.
  const std::string path = absl::StrCat(folder, "/", FileName(part, parts.size()));
  const std::string unnamed = absl::StrCat(path, ".new");
  WAYBILL_RETURN_IF_ERROR(WriteSafetensors(unnamed, parts[part], Durability::kSynced));
  fs::rename(unnamed, path, error);
  if (error) return Failed("rename", unnamed, error.value());
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!fs::exists(absl::StrCat(folder, "/", FileName(i, parts.size())), error)) return false;
  }
  // Renames the folder, unless another process has seen the last part too and was faster.
  absl::Status named = Sync(folder);
  if (named.ok()) {
    fs::rename(folder, FolderOf(version), error);
    if (error) named = Failed("rename", folder, error.value());
  }
  if (!named.ok()) {
    if (fs::exists(FolderOf(version), error)) return false;
    return named;
  }
  WAYBILL_RETURN_IF_ERROR(Link(version));
  return true;
}

absl::Status Archive::Link(uint64_t version) const {
  const std::string link = absl::StrCat(folder_, "/newest"), next = link + std::string(kUnfinished);
  std::error_code error;
  fs::remove(next, error);
  fs::create_directory_symlink(fs::path(FolderOf(version)).filename(), next, error);
  if (!error) fs::rename(next, link, error);
  if (error) return Failed("link", link, error.value());
  return Sync(folder_);
}

absl::Status Archive::Keep(uint64_t count) const {
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<uint64_t> versions, Versions());
  if (versions.empty()) return absl::OkStatus();
  const bool all = count == 0 || count >= versions.size();
  const uint64_t oldest = all ? 0 : versions[versions.size() - count];
  return Remove(oldest, versions.back());
}

absl::Status Archive::RemoveUnfinished() const {
  return Remove(/*whole_before=*/0, std::numeric_limits<uint64_t>::max());
}

absl::Status Archive::Remove(uint64_t whole_before, uint64_t unfinished_before) const {
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(folder_));
  for (const std::string& name : names) {
    const auto whole = VersionOf(name, ""), unfinished = VersionOf(name, kUnfinished);
    const bool old =
        (whole && *whole < whole_before) || (unfinished && *unfinished < unfinished_before);
    if (!old) continue;
    const std::string path = absl::StrCat(folder_, "/", name);
    std::error_code error;
    fs::remove_all(path, error);
    if (error) return Failed("remove", path, error.value());
  }
  return absl::OkStatus();
}

}  // namespace waybill
