// SPDX-License-Identifier: Apache-2.0

// Describes what one rank holds: every shard with its place in memory, aliases, padding and NICs.
//
// Kept as structs of arrays, a column for each property and no object for each shard: a large model
// has a million of them. Indices are in the order of adding; they are what plans and errors name.
// Copies share what they describe until one of them changes it, so replicas cost nothing.
#ifndef WAYBILL_CORE_TENSOR_MANIFEST_H_
#define WAYBILL_CORE_TENSOR_MANIFEST_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/tensor/box.h"
#include "core/tensor/dtype.h"
#include "core/tensor/format.h"

namespace waybill {

// A network interface by which a rank can be reached.
struct Nic {
  std::string name;
  uint32_t rail = 0;
  uint32_t numa_node = 0;
  uint64_t bytes_per_second = 0;

  bool operator==(const Nic&) const = default;
};

// The place of elements in memory: element `i` of a box is at offset_bytes + element_bytes *
// sum(strides[d] * i[d]), counted from the box's own origin. Another axis order is another order of
// strides.
struct Place {
  uint32_t region_index = 0;
  uint64_t offset_bytes = 0;
  absl::Span<const int64_t> strides;  // In elements, one for each dimension.
  // Not empty: an engine has put the elements into an order of its own since it loaded them, which
  // strides do not tell, and calls it so. CheckOrder() refuses it.
  absl::string_view engine_order = {};
};

struct ShardView {
  uint32_t tensor_index = 0;
  Format format;
  Box box;      // Within the tensor, or within the grid of scales for Format::Scales().
  Place place;  // Its strides and its order's name point into the manifest.
};

// Elements that no tensor fills: zeros from the join on, outside the plan's cover.
struct PaddingView {
  uint32_t element_bytes = 1;
  absl::Span<const int64_t> extents;
  Place place;
};

class Manifest {
  // Items of different lengths in one array; item i ends at ends[i].
  struct Names {
    std::string data;
    std::vector<uint32_t> ends;

    void Add(absl::string_view item) {
      data.append(item.data(), item.size());
      ends.push_back(static_cast<uint32_t>(data.size()));
    }
    absl::string_view operator[](uint32_t i) const {
      const uint32_t begin = i == 0 ? 0 : ends[i - 1];
      return absl::string_view(data).substr(begin, ends[i] - begin);
    }
    bool operator==(const Names&) const = default;
  };
  struct Numbers {
    std::vector<int64_t> data;
    std::vector<uint32_t> ends;

    void Add(absl::Span<const int64_t> item) {
      data.insert(data.end(), item.begin(), item.end());
      ends.push_back(static_cast<uint32_t>(data.size()));
    }
    absl::Span<const int64_t> operator[](uint32_t i) const {
      const uint32_t begin = i == 0 ? 0 : ends[i - 1];
      return absl::MakeConstSpan(data).subspan(begin, ends[i] - begin);
    }
    bool operator==(const Numbers&) const = default;
  };
  struct Tensors {
    Names names;
    Numbers shapes;
    std::vector<Dtype> dtypes;
    Names alias_names;
    std::vector<uint32_t> alias_tensors;

    bool operator==(const Tensors&) const = default;
  };
  struct Holdings {
    Names region_names;
    std::vector<uint64_t> region_bytes;

    std::vector<uint32_t> shard_tensors;
    std::vector<Format> formats;  // The distinct ones.
    std::vector<uint32_t> shard_formats;
    std::vector<uint32_t> shard_regions;
    std::vector<uint64_t> shard_offsets;
    Numbers shard_begins;
    Numbers shard_ends;
    Numbers shard_strides;
    std::vector<uint32_t> ordered_shards;  // Few or none: no column of all shards.
    Names engine_orders;

    std::vector<uint32_t> padding_regions;
    std::vector<uint64_t> padding_offsets;
    std::vector<uint32_t> padding_element_bytes;
    Numbers padding_extents;
    Numbers padding_strides;

    bool operator==(const Holdings&) const = default;
  };

 public:
  // Each returns the index of what it added.
  uint32_t AddRegion(absl::string_view name, uint64_t size_bytes);
  uint32_t AddTensor(absl::string_view name, absl::Span<const int64_t> shape, Dtype dtype);
  uint32_t AddShard(uint32_t tensor_index, const Format& format, const Box& box,
                    const Place& place);
  uint32_t AddPadding(uint32_t element_bytes, absl::Span<const int64_t> extents,
                      const Place& place);
  // `name` is another name of a tensor (a tied head): nothing moves for it.
  uint32_t AddAlias(absl::string_view name, uint32_t tensor_index);

  // The machine the rank runs on, as far as planning needs it: equal names are one machine.
  void set_host(absl::string_view host) { host_ = std::string(host); }
  const std::string& host() const { return host_; }
  // The rack of that machine, or the switch that it is connected to: equal names are one rack, and
  // links between racks may be slower than those within one. Empty if unknown.
  void set_rack(absl::string_view rack) { rack_ = std::string(rack); }
  const std::string& rack() const { return rack_; }
  std::vector<Nic>& nics() { return nics_; }
  const std::vector<Nic>& nics() const { return nics_; }

  uint32_t region_count() const { return Count(holdings_->region_bytes); }
  absl::string_view region_name(uint32_t i) const { return holdings_->region_names[i]; }
  uint64_t region_bytes(uint32_t i) const { return holdings_->region_bytes[i]; }

  uint32_t tensor_count() const { return Count(tensors_->dtypes); }
  absl::string_view tensor_name(uint32_t i) const { return tensors_->names[i]; }
  Dtype tensor_dtype(uint32_t i) const { return tensors_->dtypes[i]; }
  absl::Span<const int64_t> tensor_shape(uint32_t i) const { return tensors_->shapes[i]; }

  uint32_t shard_count() const { return Count(holdings_->shard_tensors); }
  ShardView shard(uint32_t i) const;
  uint64_t shard_bytes(uint32_t i) const;  // The size of its elements.
  // Single properties of a shard, without the rest of its view.
  uint32_t shard_tensor(uint32_t i) const { return holdings_->shard_tensors[i]; }
  const Format& shard_format(uint32_t i) const {
    return holdings_->formats[holdings_->shard_formats[i]];
  }
  uint32_t shard_region(uint32_t i) const { return holdings_->shard_regions[i]; }
  uint64_t shard_offset(uint32_t i) const { return holdings_->shard_offsets[i]; }
  // Returns true if shards `i` and `j` differ at most in their tensor, region and offset.
  bool AreAlike(uint32_t i, uint32_t j) const;
  // Returns a hash that is equal for shards that are alike. It differs from process to process.
  size_t HashOfShard(uint32_t i) const;

  // Any of its shards is quantised, or holds scales.
  bool has_quantised() const;
  // The indices of the shards that lie in an engine's own order.
  absl::Span<const uint32_t> shards_in_engine_order() const { return holdings_->ordered_shards; }

  uint32_t padding_count() const { return Count(holdings_->padding_regions); }
  PaddingView padding(uint32_t i) const;

  uint32_t alias_count() const { return Count(tensors_->alias_tensors); }
  absl::string_view alias_name(uint32_t i) const { return tensors_->alias_names[i]; }
  uint32_t alias_tensor(uint32_t i) const { return tensors_->alias_tensors[i]; }

  // Bytes of all shards.
  uint64_t total_bytes() const;

  // Returns the same tensors, regions, host, rack and NICs, without shards and padding.
  Manifest WithoutShards() const;

  bool operator==(const Manifest&) const = default;

  // Returns true if both describe the same tensors and memory, whatever their hosts, racks and NICs
  // are. Copies of one manifest are compared without looking at their shards.
  bool HoldsTheSame(const Manifest& other) const {
    return tensors_ == other.tensors_ && holdings_ == other.holdings_;
  }
  // Returns true if they are copies of one manifest, except for their hosts, racks and NICs.
  bool SharesHoldingsWith(const Manifest& other) const {
    return tensors_.SharesWith(other.tensors_) && holdings_.SharesWith(other.holdings_);
  }
  // Returns a hash that is equal for manifests that hold the same. It differs from process to
  // process.
  size_t HashOfHoldings() const;
  // Returns true if both list the same tensors in the same order.
  bool ListsTheSameTensors(const Manifest& other) const { return tensors_ == other.tensors_; }

 private:
  // A value that copies share until one of them changes it.
  template <typename T>
  class Shared {
   public:
    const T& operator*() const { return *value_; }
    const T* operator->() const { return value_.get(); }
    T& Mutable() {
      if (value_.use_count() > 1) value_ = std::make_shared<T>(*value_);
      return *value_;
    }
    bool SharesWith(const Shared& other) const { return value_ == other.value_; }
    bool operator==(const Shared& other) const {
      return SharesWith(other) || *value_ == *other.value_;
    }

   private:
    std::shared_ptr<T> value_ = std::make_shared<T>();
  };

  template <typename T>
  static uint32_t Count(const std::vector<T>& column) {
    return static_cast<uint32_t>(column.size());
  }

  std::string host_;
  std::string rack_;
  std::vector<Nic> nics_;
  Shared<Tensors> tensors_;
  Shared<Holdings> holdings_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_TENSOR_MANIFEST_H_
