// SPDX-License-Identifier: Apache-2.0

#include "core/layout/safetensors_writer.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/file_size_signal.h"
#include "core/base/json_text.h"
#include "core/base/new_file.h"
#include "core/base/status.h"
#include "core/base/unique_fd.h"
#include "core/tensor/box.h"

namespace waybill {
namespace {

constexpr size_t kChunkBytes = size_t{4} << 20;

// "<path>.part" until Finish(); removed unless that succeeds.
class PartFile {
 public:
  explicit PartFile(const std::string& path) : path_(path), part_(path + ".part") {}
  ~PartFile() {
    if (fd_.valid()) unlink(part_.c_str());
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  absl::Status Open() {
    fd_ = OpenNewFile(part_);
    return fd_.valid() ? absl::OkStatus() : Failed("open", errno);
  }

  // Says what is being written, for errors.
  void Begin(absl::string_view what, uint64_t size_bytes) {
    what_ = absl::StrCat(what, " (", size_bytes, " bytes)");
  }

  absl::Status Write(absl::Span<const std::byte> bytes) {
    const FileSizeSignalBlocked blocked;
    while (!bytes.empty()) {
      const ssize_t count = write(fd_.get(), bytes.data(), bytes.size());
      if (count < 0) {
        if (errno == EINTR) continue;
        return Failed("write", errno);
      }
      if (count == 0) return Failed("write", ENOSPC);
      written_bytes_ += static_cast<uint64_t>(count);
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return absl::OkStatus();
  }

  absl::Status Write(absl::string_view text) {
    return Write({reinterpret_cast<const std::byte*>(text.data()), text.size()});
  }

  // Network file systems tell of a full disk no earlier than here.
  absl::Status Finish(Durability durability) {
    what_ = "its end";
    if (durability == Durability::kSynced && fsync(fd_.get()) != 0) return Failed("fsync", errno);
    const int fd = dup(fd_.get());  // Closing a copy tells as well, and the owner stays the owner.
    if (fd < 0 || close(fd) != 0) return Failed("close", errno);
    if (rename(part_.c_str(), path_.c_str()) != 0) return Failed("rename", errno);
    fd_.Reset();
    if (durability == Durability::kSynced) {
      const std::string parent = std::filesystem::path(path_).parent_path().string();
      const UniqueFd directory(open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_CLOEXEC));
      if (!directory.valid() || fsync(directory.get()) != 0) {
        return Failed("fsync of the directory", errno);
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Failed(absl::string_view operation, int error) const {
    std::string message = absl::StrCat("write \"", path_, "\": ", what_, what_.empty() ? "" : ": ",
                                       operation, ": ", std::strerror(error), " (errno ", error,
                                       ") after ", written_bytes_, " bytes of the file");
    if (rlimit limit{}; error == EFBIG && getrlimit(RLIMIT_FSIZE, &limit) == 0) {
      absl::StrAppend(&message, "; RLIMIT_FSIZE is ", limit.rlim_cur, " bytes");
    }
    if (error == ENOSPC || error == EFBIG || error == EDQUOT) {
      return absl::ResourceExhaustedError(message);
    }
    return absl::Status(absl::ErrnoToStatusCode(error), message);
  }

  std::string path_;
  std::string part_;
  std::string what_;
  UniqueFd fd_;
  uint64_t written_bytes_ = 0;
};

absl::Status WriteText(const std::string& path, absl::string_view text, Durability durability) {
  PartFile file(path);
  WAYBILL_RETURN_IF_ERROR(file.Open());
  file.Begin("the text", text.size());
  WAYBILL_RETURN_IF_ERROR(file.Write(text));
  return file.Finish(durability);
}

std::string HeaderOf(absl::Span<const CheckpointTensor> tensors) {
  auto header = nlohmann::json::object();
  uint64_t at = 0;
  for (const CheckpointTensor& tensor : tensors) {
    const uint64_t end = at + tensor.size_bytes();
    header[tensor.name] = {{"dtype", std::string(Name(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {at, end}}};
    at = end;
  }
  // Bytes that are no UTF-8 cannot be in a header.
  std::string text = JsonText(header);
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

absl::Status CheckTensors(absl::Span<const CheckpointTensor> tensors, bool have_data) {
  absl::flat_hash_set<absl::string_view> names;
  for (const CheckpointTensor& tensor : tensors) {
    const auto invalid = [&](const std::string& problem) {
      return absl::InvalidArgumentError(absl::StrCat("tensor \"", tensor.name, "\": ", problem));
    };
    if (!names.insert(tensor.name).second) return invalid("it is given twice");
    if (const uint64_t needed = tensor.size_bytes(); have_data && tensor.data.size() != needed) {
      return invalid(absl::StrCat(ShapeToString(tensor.shape), " of ", Name(tensor.dtype),
                                  " needs ", needed, " bytes, given are ", tensor.data.size()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status WriteSafetensors(const std::string& path, absl::Span<const CheckpointTensor> tensors,
                              Durability durability, const TensorBytes& bytes) {
  if (absl::Status good = CheckTensors(tensors, /*have_data=*/!bytes); !good.ok()) {
    return While(absl::StrCat("write \"", path, "\""), std::move(good));
  }
  const std::string header = HeaderOf(tensors);
  const uint64_t header_bytes = header.size();
  PartFile file(path);
  WAYBILL_RETURN_IF_ERROR(file.Open());
  file.Begin("the header", header_bytes);
  WAYBILL_RETURN_IF_ERROR(
      file.Write({reinterpret_cast<const std::byte*>(&header_bytes), sizeof(header_bytes)}));
  WAYBILL_RETURN_IF_ERROR(file.Write(header));
  std::vector<std::byte> buffer(bytes ? kChunkBytes : 0);
  for (const CheckpointTensor& tensor : tensors) {
    const uint64_t size = tensor.size_bytes();
    file.Begin(absl::StrCat("tensor \"", tensor.name, "\""), size);
    if (!bytes) {
      WAYBILL_RETURN_IF_ERROR(file.Write(tensor.data));
      continue;
    }
    for (uint64_t at = 0; at < size; at += kChunkBytes) {
      const auto chunk = absl::MakeSpan(buffer).first(std::min<uint64_t>(kChunkBytes, size - at));
      bytes(tensor, at, chunk);
      WAYBILL_RETURN_IF_ERROR(file.Write(absl::MakeConstSpan(chunk)));
    }
  }
  return file.Finish(durability);
}

std::string FileName(size_t i, size_t count) {
  return absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, count);
}

absl::Status WriteIndex(const std::string& directory, absl::Span<const IndexedFile> files,
                        Durability durability) {
  uint64_t total_bytes = 0;
  auto weight_map = nlohmann::json::object();
  for (const IndexedFile& file : files) {
    for (const CheckpointTensor& tensor : file.tensors) {
      total_bytes += tensor.size_bytes();
      weight_map[tensor.name] = file.name;
    }
  }
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}},
                                {"weight_map", weight_map}};
  return WriteText(absl::StrCat(directory, "/model.safetensors.index.json"),
                   JsonText(index, 1) + "\n", durability);
}

absl::Status WriteCheckpoint(const std::string& directory, absl::string_view config_json,
                             absl::Span<const CheckpointTensor> tensors, uint64_t max_file_bytes,
                             Durability durability, const TensorBytes& bytes) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  std::filesystem::directory_iterator at(directory, error);
  for (; !error && at != std::filesystem::directory_iterator(); at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (absl::EndsWith(name, ".safetensors")) {
      return absl::AlreadyExistsError(
          absl::StrCat("write checkpoint \"", directory, "\": it has ", name));
    }
  }
  if (error) {
    return absl::Status(absl::ErrnoToStatusCode(error.value()),
                        absl::StrCat("write checkpoint \"", directory, "\": ", error.message()));
  }

  std::vector<IndexedFile> files;
  for (size_t begin = 0; begin < tensors.size();) {
    size_t end = begin;
    uint64_t file_bytes = 0;
    do {
      file_bytes += tensors[end++].size_bytes();
    } while (end < tensors.size() && file_bytes + tensors[end].size_bytes() <= max_file_bytes);
    files.push_back({"model.safetensors", tensors.subspan(begin, end - begin)});
    begin = end;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (files.size() > 1) files[i].name = FileName(i, files.size());
    WAYBILL_RETURN_IF_ERROR(WriteSafetensors(absl::StrCat(directory, "/", files[i].name),
                                             files[i].tensors, durability, bytes));
  }
  if (files.size() > 1) WAYBILL_RETURN_IF_ERROR(WriteIndex(directory, files, durability));
  if (config_json.empty()) return absl::OkStatus();
  return WriteText(absl::StrCat(directory, "/config.json"), config_json, durability);
}

}  // namespace waybill
