// SPDX-License-Identifier: Apache-2.0

#include "core/layout/safetensors_header.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/tensor/box.h"

namespace waybill {
namespace {

using nlohmann::json;

constexpr absl::string_view kMetadata = "__metadata__";

// Takes the parser's events one by one: a document model would drop what is there twice.
class Handler : public nlohmann::json_sax<json> {
 public:
  absl::StatusOr<std::vector<HeaderEntry>> Result() {
    if (!status_.ok()) return status_;
    return std::move(entries_);
  }

  bool start_object(size_t /*elements*/) override {
    if (state_ == State::kStart) return Enter(State::kEntries);
    if (state_ != State::kEntryValue) return Unexpected("an object");
    if (name_ == kMetadata) return Enter(State::kMetadata);
    entry_ = {.name = name_};
    dtype_seen_ = shape_seen_ = false;
    offsets_.reset();
    return Enter(State::kEntry);
  }

  bool key(string_t& key) override {
    switch (state_) {
      case State::kEntries:
        if (key.empty()) return Fail("a tensor without a name");
        if (!names_.insert(key).second)
          return Fail(absl::StrCat("tensor \"", key, "\" is there twice"));
        name_ = key;
        return Enter(State::kEntryValue);
      case State::kEntry:
        if (key == "dtype" && !dtype_seen_) return Enter(State::kDtype);
        if (key == "shape" && !shape_seen_) return Enter(State::kShape);
        if (key == "data_offsets" && !offsets_) return Enter(State::kOffsets);
        return Fail(absl::StrCat(Where(), "\"", key, "\" is there twice or is no field"));
      default:
        return true;  // Metadata, which we do not read.
    }
  }

  bool end_object() override {
    if (state_ == State::kEntry) {
      if (!dtype_seen_ || !shape_seen_ || !offsets_) {
        return Fail(absl::StrCat(Where(),
                                 !dtype_seen_   ? "dtype"
                                 : !shape_seen_ ? "shape"
                                                : "data_offsets",
                                 " is missing"));
      }
      entry_.begin = offsets_->first;
      entry_.end = offsets_->second;
      entries_.push_back(std::move(entry_));
    }
    return Enter(state_ == State::kEntries ? State::kEnd : State::kEntries);
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kDtype) return Unexpected("a string");
    const auto dtype = ParseDtype(value);
    if (!dtype.ok()) return Fail(absl::StrCat(Where(), dtype.status().message()));
    entry_.dtype = *dtype;
    dtype_seen_ = true;
    return Enter(State::kEntry);
  }

  bool start_array(size_t /*elements*/) override {
    if ((state_ != State::kShape && state_ != State::kOffsets) || in_array_) {
      return Unexpected("an array");
    }
    in_array_ = true;
    numbers_.clear();
    return true;
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (!in_array_) return Unexpected("a number");
    if (numbers_.size() == kMaxDimensions) {
      return Fail(absl::StrCat(Where(), "more than ", kMaxDimensions, " numbers in one array"));
    }
    numbers_.push_back(value);
    return true;
  }

  bool end_array() override {
    in_array_ = false;
    if (state_ == State::kOffsets) {
      if (numbers_.size() != 2) {
        return Fail(absl::StrCat(Where(), "data_offsets has ", numbers_.size(), " numbers, not 2"));
      }
      offsets_ = {numbers_[0], numbers_[1]};
      return Enter(State::kEntry);
    }
    for (const uint64_t number : numbers_) {
      if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Fail(absl::StrCat(Where(), "extent ", number, " does not fit into 63 bits"));
      }
      entry_.shape.push_back(static_cast<int64_t>(number));
    }
    shape_seen_ = true;
    return Enter(State::kEntry);
  }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool /*value*/) override { return Unexpected("true or false"); }
  bool number_integer(number_integer_t value) override {
    return Unexpected(absl::StrCat("number ", value));
  }
  bool number_float(number_float_t /*value*/, const string_t& text) override {
    return Unexpected(absl::StrCat("number ", text));
  }
  bool binary(binary_t& /*value*/) override { return Unexpected("bytes"); }

  bool parse_error(size_t position, const std::string& /*token*/,
                   const json::exception& /*error*/) override {
    return Fail(absl::StrCat("the header is not JSON from byte ", position, " on"));
  }

 private:
  enum class State : uint8_t {
    kStart,
    kEntries,     // In the outer object, before a name.
    kEntryValue,  // Behind a name.
    kMetadata,
    kEntry,  // In a tensor's object, before a field's name.
    kDtype,
    kShape,
    kOffsets,
    kEnd,
  };

  bool Enter(State state) {
    state_ = state;
    return true;
  }
  bool Fail(const std::string& message) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(message);
    return false;
  }
  bool Unexpected(absl::string_view what) {
    return Fail(absl::StrCat(Where(), what, " where the format has none"));
  }
  std::string Where() const {
    return name_.empty() ? "" : absl::StrCat("tensor \"", name_, "\": ");
  }

  State state_ = State::kStart;
  absl::Status status_;
  std::vector<HeaderEntry> entries_;
  absl::flat_hash_set<std::string> names_;

  std::string name_;
  HeaderEntry entry_;
  bool dtype_seen_ = false;
  bool shape_seen_ = false;
  std::optional<std::pair<uint64_t, uint64_t>> offsets_;
  bool in_array_ = false;
  std::vector<uint64_t> numbers_;
};

}  // namespace

absl::StatusOr<std::vector<HeaderEntry>> ParseSafetensorsHeader(absl::string_view text) {
  Handler handler;
  json::sax_parse(text.begin(), text.end(), &handler);
  return handler.Result();
}

}  // namespace waybill
