// SPDX-License-Identifier: Apache-2.0

#include "core/tensor/manifest_codec.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/sha256.h"
#include "core/base/status.h"
#include "core/tensor/manifest.pb.h"

namespace waybill {
namespace {

constexpr uint32_t kVersion = 6;

void AddName(proto::Names* names, absl::string_view name) {
  names->mutable_data()->append(name.data(), name.size());
  names->add_lengths(static_cast<uint32_t>(name.size()));
}

void AddNumbers(proto::Numbers* numbers, absl::Span<const int64_t> item) {
  numbers->mutable_data()->Add(item.begin(), item.end());
  numbers->add_lengths(static_cast<uint32_t>(item.size()));
}

// Reads a pool's items one after the other.
class NameReader {
 public:
  explicit NameReader(const proto::Names& names) : names_(names) {}
  absl::string_view Next() {
    const uint32_t length = names_.lengths(index_++);
    begin_ += length;
    return absl::string_view(names_.data()).substr(begin_ - length, length);
  }

 private:
  const proto::Names& names_;
  int index_ = 0;
  size_t begin_ = 0;
};

class NumberReader {
 public:
  explicit NumberReader(const proto::Numbers& numbers) : numbers_(numbers) {}
  absl::Span<const int64_t> Next() {
    const uint32_t length = numbers_.lengths(index_++);
    begin_ += length;
    return {numbers_.data().data() + begin_ - length, length};
  }

 private:
  const proto::Numbers& numbers_;
  int index_ = 0;
  size_t begin_ = 0;
};

// One table of a message: every column has as many items, and every pool's items fill its array.
class TableCheck {
 public:
  TableCheck(absl::string_view table, int rows) : table_(table), rows_(rows) {}

  TableCheck& Column(int size) {
    if (size != rows_) Fail(absl::StrCat("columns of ", rows_, " and ", size, " rows"));
    return *this;
  }
  TableCheck& Pool(const google::protobuf::RepeatedField<uint32_t>& lengths, size_t data_size,
                   size_t item_limit) {
    Column(lengths.size());
    uint64_t total = 0;
    for (const uint32_t length : lengths) {
      total += length;
      if (length > item_limit) {
        Fail(absl::StrCat("an item of length ", length, ", at most ", item_limit));
        return *this;
      }
    }
    if (total != data_size) {
      Fail(absl::StrCat("items of ", total, " in all, in an array of ", data_size));
    }
    return *this;
  }
  TableCheck& Pool(const proto::Numbers& numbers) {
    return Pool(numbers.lengths(), static_cast<size_t>(numbers.data_size()), kMaxDimensions);
  }
  TableCheck& Pool(const proto::Names& names) {
    return Pool(names.lengths(), names.data().size(), names.data().size());
  }
  absl::Status status() const { return status_; }

 private:
  void Fail(absl::string_view what) {
    if (status_.ok()) {
      status_ = absl::InvalidArgumentError(absl::StrCat("manifest: table of ", table_, ": ", what));
    }
  }

  absl::string_view table_;
  int rows_;
  absl::Status status_;
};

absl::Status CheckTables(const proto::Tensors& m) {
  WAYBILL_RETURN_IF_ERROR(
      TableCheck("tensors", m.dtypes_size()).Pool(m.names()).Pool(m.shapes()).status());
  return TableCheck("aliases", m.alias_tensors_size()).Pool(m.alias_names()).status();
}

absl::Status CheckTables(const proto::Holdings& m) {
  // Each shard's format is looked for among the ones before.
  constexpr int kMostQuantisations = 256;
  if (m.quantisations_size() > kMostQuantisations) {
    return absl::InvalidArgumentError(absl::StrCat("manifest: ", m.quantisations_size(),
                                                   " quantisations, at most ", kMostQuantisations));
  }
  const bool quantised = m.shard_contents_size() > 0 || m.shard_quantisations_size() > 0;
  const int shards = m.shard_tensor_steps_size();
  WAYBILL_RETURN_IF_ERROR(
      TableCheck("regions", m.region_bytes_size()).Pool(m.region_names()).status());
  WAYBILL_RETURN_IF_ERROR(TableCheck("shards", shards)
                              .Column(m.shard_dtypes_size())
                              .Column(quantised ? m.shard_contents_size() : shards)
                              .Column(quantised ? m.shard_quantisations_size() : shards)
                              .Column(m.shard_region_steps_size())
                              .Column(m.shard_offset_steps_size())
                              .Pool(m.shard_begins())
                              .Pool(m.shard_ends())
                              .Pool(m.shard_strides())
                              .status());
  WAYBILL_RETURN_IF_ERROR(TableCheck("padding", m.padding_regions_size())
                              .Column(m.padding_offsets_size())
                              .Column(m.padding_element_bytes_size())
                              .Pool(m.padding_extents())
                              .Pool(m.padding_strides())
                              .status());
  return TableCheck("engine orders", m.ordered_shards_size()).Pool(m.engine_orders()).status();
}

// The name of each shard's engine order; a view of nothing where it has none.
absl::StatusOr<std::vector<absl::string_view>> DecodeOrders(const proto::Holdings& m) {
  std::vector<absl::string_view> orders(static_cast<size_t>(m.shard_tensor_steps_size()));
  NameReader names(m.engine_orders());
  for (const uint32_t shard : m.ordered_shards()) {
    const absl::string_view name = names.Next();
    if (shard >= orders.size() || name.empty() || !orders[shard].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: engine order \"", name,
                                                     "\" of shard ", shard, " of ", orders.size(),
                                                     ": empty, given twice, or of none"));
    }
    orders[shard] = name;
  }
  return orders;
}

uint32_t IndexOf(const Quantisation& q, std::vector<Quantisation>& known) {
  const auto found = std::find(known.begin(), known.end(), q);
  const auto index = static_cast<uint32_t>(found - known.begin());
  if (found == known.end()) known.push_back(q);
  return index;
}

void EncodeQuantisation(const Quantisation& q, proto::Quantisation* out) {
  out->set_dtype(static_cast<uint32_t>(q.dtype));
  out->set_from(static_cast<uint32_t>(q.from));
  out->set_scale_dtype(static_cast<uint32_t>(q.scale_dtype));
  out->set_rounding(static_cast<uint32_t>(q.rounding));
  out->set_division(static_cast<uint32_t>(q.division));
  out->set_stores_reciprocal(q.stores_reciprocal);
  out->set_epsilon(q.epsilon);
  out->set_block_rows(q.block_rows);
  out->set_block_columns(q.block_columns);
  out->set_scale_rows(q.scale_rows);
  out->set_scale_columns(q.scale_columns);
}

absl::StatusOr<Quantisation> DecodeQuantisation(const proto::Quantisation& q) {
  Quantisation out;
  WAYBILL_ASSIGN_OR_RETURN(out.dtype, DtypeFromNumber(q.dtype()));
  WAYBILL_ASSIGN_OR_RETURN(out.from, DtypeFromNumber(q.from()));
  WAYBILL_ASSIGN_OR_RETURN(out.scale_dtype, DtypeFromNumber(q.scale_dtype()));
  out.rounding = static_cast<ScaleRounding>(std::min(q.rounding(), 0xFFu));
  out.division = static_cast<Division>(std::min(q.division(), 0xFFu));
  out.stores_reciprocal = q.stores_reciprocal();
  out.epsilon = q.epsilon();
  out.block_rows = q.block_rows();
  out.block_columns = q.block_columns();
  out.scale_rows = q.scale_rows();
  out.scale_columns = q.scale_columns();
  WAYBILL_RETURN_IF_ERROR(CheckQuantisation(out));
  return out;
}

absl::StatusOr<Format> DecodeFormat(const proto::Holdings& m, int shard) {
  Format format;
  WAYBILL_ASSIGN_OR_RETURN(format.dtype, DtypeFromNumber(m.shard_dtypes(shard)));
  if (m.shard_contents_size() == 0 || m.shard_contents(shard) == 0) return format;
  const uint32_t content = m.shard_contents(shard), index = m.shard_quantisations(shard);
  if (content > static_cast<uint32_t>(Content::kScales) ||
      index >= static_cast<uint32_t>(m.quantisations_size())) {
    return absl::InvalidArgumentError(absl::StrCat("manifest: shard ", shard, ": content ", content,
                                                   ", quantisation ", index, " of ",
                                                   m.quantisations_size()));
  }
  format.content = static_cast<Content>(content);
  WAYBILL_ASSIGN_OR_RETURN(format.quantisation,
                           DecodeQuantisation(m.quantisations(static_cast<int>(index))));
  return format;
}

std::string EncodeTensors(const Manifest& manifest) {
  proto::Tensors m;
  for (uint32_t i = 0; i < manifest.tensor_count(); ++i) {
    AddName(m.mutable_names(), manifest.tensor_name(i));
    AddNumbers(m.mutable_shapes(), manifest.tensor_shape(i));
    m.add_dtypes(static_cast<uint32_t>(manifest.tensor_dtype(i)));
  }
  for (uint32_t i = 0; i < manifest.alias_count(); ++i) {
    AddName(m.mutable_alias_names(), manifest.alias_name(i));
    m.add_alias_tensors(manifest.alias_tensor(i));
  }
  return m.SerializeAsString();
}

void EncodeShards(const Manifest& manifest, proto::Holdings& m) {
  const bool quantised = manifest.has_quantised();
  std::vector<Quantisation> quantisations;
  int64_t tensor = 0, region = 0;
  uint64_t offset = 0;
  for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
    const ShardView shard = manifest.shard(i);
    m.add_shard_tensor_steps(shard.tensor_index - std::exchange(tensor, shard.tensor_index));
    m.add_shard_dtypes(static_cast<uint32_t>(shard.format.dtype));
    m.add_shard_region_steps(shard.place.region_index -
                             std::exchange(region, shard.place.region_index));
    m.add_shard_offset_steps(static_cast<int64_t>(shard.place.offset_bytes -
                                                  std::exchange(offset, shard.place.offset_bytes)));
    if (quantised) {
      m.add_shard_contents(static_cast<uint32_t>(shard.format.content));
      const bool plain = shard.format.content == Content::kPlain;
      m.add_shard_quantisations(plain ? 0 : IndexOf(shard.format.quantisation, quantisations));
    }
    AddNumbers(m.mutable_shard_begins(), shard.box.begins());
    AddNumbers(m.mutable_shard_ends(), shard.box.ends());
    AddNumbers(m.mutable_shard_strides(), shard.place.strides);
  }
  for (const uint32_t i : manifest.shards_in_engine_order()) {
    m.add_ordered_shards(i);
    AddName(m.mutable_engine_orders(), manifest.shard(i).place.engine_order);
  }
  for (const Quantisation& q : quantisations) EncodeQuantisation(q, m.add_quantisations());
}

std::string EncodeHoldings(const Manifest& manifest) {
  proto::Holdings m;
  for (uint32_t i = 0; i < manifest.region_count(); ++i) {
    AddName(m.mutable_region_names(), manifest.region_name(i));
    m.add_region_bytes(manifest.region_bytes(i));
  }
  EncodeShards(manifest, m);
  for (uint32_t i = 0; i < manifest.padding_count(); ++i) {
    const PaddingView padding = manifest.padding(i);
    m.add_padding_regions(padding.place.region_index);
    m.add_padding_offsets(padding.place.offset_bytes);
    m.add_padding_element_bytes(padding.element_bytes);
    AddNumbers(m.mutable_padding_extents(), padding.extents);
    AddNumbers(m.mutable_padding_strides(), padding.place.strides);
  }
  return m.SerializeAsString();
}

// A manifest without the bytes of its parts.
proto::Manifest EncodeHead(const Manifest& manifest, absl::string_view tensors,
                           absl::string_view holdings) {
  proto::Manifest m;
  m.set_schema_version(kVersion);
  m.set_host(manifest.host());
  m.set_rack(manifest.rack());
  for (const Nic& nic : manifest.nics()) {
    proto::Nic* out = m.add_nics();
    out->set_name(nic.name);
    out->set_rail(nic.rail);
    out->set_numa_node(nic.numa_node);
    out->set_bytes_per_second(nic.bytes_per_second);
  }
  m.mutable_tensors()->set_hash(Sha256(tensors));
  m.mutable_holdings()->set_hash(Sha256(holdings));
  return m;
}

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// Goes over the fields of a message: visit(tag) reads what follows its tag, and returns false if it
// cannot.
template <typename Visit>
void ForEachField(CodedInputStream& in, Visit visit) {
  for (uint32_t tag = in.ReadTag(); tag != 0 && visit(tag); tag = in.ReadTag()) {
  }
}

// Returns how many numbers a part has at most. `names` has a bit for each field that is Names.
size_t CountNumbers(absl::string_view bytes, uint64_t names) {
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  CodedInputStream in(data, static_cast<int>(bytes.size()));
  // The last byte of a number is below 0x80.
  const auto count = [&](int begin) {
    return static_cast<size_t>(std::count_if(data + begin, data + in.CurrentPosition(),
                                             [](uint8_t byte) { return byte < 0x80; }));
  };
  size_t numbers = 0;
  ForEachField(in, [&](uint32_t tag) {
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    const bool is_names =
        field < 64 && (names >> field & 1) != 0 &&
        WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    uint32_t length = 0;
    if (!is_names || !in.ReadVarint32(&length)) {
      const int begin = in.CurrentPosition();
      const bool read = WireFormatLite::SkipField(&in, tag);
      numbers += count(begin);
      return read;
    }
    const auto limit = in.PushLimit(static_cast<int>(length));
    ForEachField(in, [&](uint32_t inner) {
      const int begin = in.CurrentPosition();
      const bool read = WireFormatLite::SkipField(&in, inner);
      if (WireFormatLite::GetTagFieldNumber(inner) != proto::Names::kDataFieldNumber) {
        numbers += count(begin);
      }
      return read;
    });
    in.PopLimit(limit);
    return true;
  });
  return numbers;
}

// A number of one byte takes up to eight in memory, and a row of seven of them a shard.
absl::Status CheckSize(absl::string_view bytes, uint64_t names) {
  if (bytes.size() > kMostPartBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "manifest: a part of ", bytes.size(), " bytes, at most ", kMostPartBytes, " are taken"));
  }
  const size_t numbers = CountNumbers(bytes, names);
  if (numbers <= kMostNumbersOfPart) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "manifest: a part of ", numbers, " numbers, at most ", kMostNumbersOfPart, " are taken"));
}

constexpr uint64_t Bit(int field) { return uint64_t{1} << field; }

absl::Status ParsePart(absl::string_view what, absl::string_view bytes,
                       google::protobuf::MessageLite& m) {
  if (m.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("manifest: ", bytes.size(), " bytes are not ", what));
}

absl::StatusOr<ManifestHead> ReadHead(const proto::Manifest& m) {
  if (m.schema_version() != kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("manifest: schema version ", m.schema_version(),
                                                   ", this program knows ", kVersion));
  }
  ManifestHead head{.host = m.host(),
                    .rack = m.rack(),
                    .nics = {},
                    .tensors = m.tensors().hash(),
                    .holdings = m.holdings().hash()};
  for (const proto::Nic& nic : m.nics()) {
    head.nics.push_back({.name = nic.name(),
                         .rail = nic.rail(),
                         .numa_node = nic.numa_node(),
                         .bytes_per_second = nic.bytes_per_second()});
  }
  return head;
}

absl::Status ReadShards(const proto::Holdings& m, Manifest& manifest) {
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<absl::string_view> orders, DecodeOrders(m));
  NumberReader all_begins(m.shard_begins()), all_ends(m.shard_ends());
  NumberReader strides(m.shard_strides());
  uint64_t tensor = 0, region = 0, offset = 0;
  for (int i = 0; i < m.shard_tensor_steps_size(); ++i) {
    WAYBILL_ASSIGN_OR_RETURN(const Format format, DecodeFormat(m, i));
    const auto begins = all_begins.Next(), ends = all_ends.Next();
    if (begins.size() != ends.size()) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: shard ", i, ": ", begins.size(),
                                                     " begins and ", ends.size(), " ends"));
    }
    tensor += static_cast<uint64_t>(m.shard_tensor_steps(i));
    region += static_cast<uint64_t>(m.shard_region_steps(i));
    offset += static_cast<uint64_t>(m.shard_offset_steps(i));
    // CheckManifest() refuses an index that is none, so one that does not fit becomes the largest.
    const auto index = [](uint64_t number) {
      return static_cast<uint32_t>(std::min<uint64_t>(number, ~uint32_t{0}));
    };
    manifest.AddShard(index(tensor), format, Box(begins, ends),
                      {.region_index = index(region),
                       .offset_bytes = offset,
                       .strides = strides.Next(),
                       .engine_order = orders[static_cast<size_t>(i)]});
  }
  return absl::OkStatus();
}

}  // namespace

EncodedManifest EncodeInParts(const Manifest& manifest) {
  EncodedManifest encoded{
      .head = {}, .tensors = EncodeTensors(manifest), .holdings = EncodeHoldings(manifest)};
  encoded.head = EncodeHead(manifest, encoded.tensors, encoded.holdings).SerializeAsString();
  return encoded;
}

std::string EncodeManifest(const Manifest& manifest) {
  std::string tensors = EncodeTensors(manifest), holdings = EncodeHoldings(manifest);
  proto::Manifest m = EncodeHead(manifest, tensors, holdings);
  m.mutable_tensors()->set_bytes(std::move(tensors));
  m.mutable_holdings()->set_bytes(std::move(holdings));
  return m.SerializeAsString();
}

absl::StatusOr<ManifestHead> DecodeHead(absl::string_view bytes) {
  proto::Manifest m;
  WAYBILL_RETURN_IF_ERROR(ParsePart("its encoding", bytes, m));
  return ReadHead(m);
}

absl::StatusOr<Manifest> DecodeTensors(absl::string_view bytes) {
  proto::Tensors m;
  WAYBILL_RETURN_IF_ERROR(
      CheckSize(bytes, Bit(m.kNamesFieldNumber) | Bit(m.kAliasNamesFieldNumber)));
  WAYBILL_RETURN_IF_ERROR(ParsePart("the encoding of its tensors", bytes, m));
  WAYBILL_RETURN_IF_ERROR(CheckTables(m));
  Manifest manifest;
  NameReader names(m.names()), aliases(m.alias_names());
  NumberReader shapes(m.shapes());
  for (const uint32_t number : m.dtypes()) {
    WAYBILL_ASSIGN_OR_RETURN(const Dtype dtype, DtypeFromNumber(number));
    manifest.AddTensor(names.Next(), shapes.Next(), dtype);
  }
  for (const uint32_t tensor : m.alias_tensors()) manifest.AddAlias(aliases.Next(), tensor);
  return manifest;
}

absl::StatusOr<Manifest> DecodeHoldings(absl::string_view bytes, Manifest tensors) {
  proto::Holdings m;
  WAYBILL_RETURN_IF_ERROR(
      CheckSize(bytes, Bit(m.kRegionNamesFieldNumber) | Bit(m.kEngineOrdersFieldNumber)));
  WAYBILL_RETURN_IF_ERROR(ParsePart("the encoding of its shards", bytes, m));
  WAYBILL_RETURN_IF_ERROR(CheckTables(m));
  Manifest manifest = std::move(tensors);
  NameReader regions(m.region_names());
  for (const uint64_t size_bytes : m.region_bytes()) {
    manifest.AddRegion(regions.Next(), size_bytes);
  }
  WAYBILL_RETURN_IF_ERROR(ReadShards(m, manifest));
  NumberReader extents(m.padding_extents()), strides(m.padding_strides());
  for (int i = 0; i < m.padding_regions_size(); ++i) {
    manifest.AddPadding(m.padding_element_bytes(i), extents.Next(),
                        {.region_index = m.padding_regions(i),
                         .offset_bytes = m.padding_offsets(i),
                         .strides = strides.Next()});
  }
  return manifest;
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes) {
  proto::Manifest m;
  WAYBILL_RETURN_IF_ERROR(ParsePart("its encoding", bytes, m));
  WAYBILL_ASSIGN_OR_RETURN(ManifestHead head, ReadHead(m));
  WAYBILL_ASSIGN_OR_RETURN(Manifest tensors, DecodeTensors(m.tensors().bytes()));
  WAYBILL_ASSIGN_OR_RETURN(Manifest manifest,
                           DecodeHoldings(m.holdings().bytes(), std::move(tensors)));
  manifest.set_host(head.host);
  manifest.set_rack(head.rack);
  manifest.nics() = std::move(head.nics);
  return manifest;
}

}  // namespace waybill
