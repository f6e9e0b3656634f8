#include "core/tensor/manifest_codec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/tensor/manifest.pb.h"

namespace waybill {
namespace {

constexpr uint32_t kPlainVersion = 1;
constexpr uint32_t kQuantisedVersion = 2;
constexpr uint32_t kOrderedVersion = 3;

void AddName(proto::Names* names, absl::string_view name) {
  names->mutable_data()->append(name.data(), name.size());
  names->add_ends(static_cast<uint32_t>(names->data().size()));
}

void AddNumbers(proto::Numbers* numbers, absl::Span<const int64_t> item) {
  numbers->mutable_data()->Add(item.begin(), item.end());
  numbers->add_ends(static_cast<uint32_t>(numbers->data_size()));
}

absl::string_view NameAt(const proto::Names& names, int i) {
  const uint32_t begin = i == 0 ? 0 : names.ends(i - 1);
  return absl::string_view(names.data()).substr(begin, names.ends(i) - begin);
}

absl::Span<const int64_t> NumbersAt(const proto::Numbers& numbers, int i) {
  const uint32_t begin = i == 0 ? 0 : numbers.ends(i - 1);
  return {numbers.data().data() + begin, numbers.ends(i) - begin};
}

// One table of the message: every column has as many items, and every pool's ends are in order.
class TableCheck {
 public:
  TableCheck(absl::string_view table, int rows) : table_(table), rows_(rows) {}

  TableCheck& Column(int size) {
    if (size != rows_) Fail(absl::StrCat("columns of ", rows_, " and ", size, " rows"));
    return *this;
  }
  TableCheck& Pool(const google::protobuf::RepeatedField<uint32_t>& ends, size_t data_size,
                   size_t item_limit) {
    Column(ends.size());
    uint32_t begin = 0;
    for (const uint32_t end : ends) {
      if (end < begin || end > data_size || end - begin > item_limit) {
        Fail(absl::StrCat("item [", begin, ", ", end, ") of ", data_size, ", at most ", item_limit,
                          " long"));
        break;
      }
      begin = end;
    }
    return *this;
  }
  TableCheck& Pool(const proto::Numbers& numbers) {
    return Pool(numbers.ends(), static_cast<size_t>(numbers.data_size()), kMaxDimensions);
  }
  TableCheck& Pool(const proto::Names& names) {
    return Pool(names.ends(), names.data().size(), names.data().size());
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

absl::Status CheckTables(const proto::Manifest& m) {
  WAYBILL_RETURN_IF_ERROR(
      TableCheck("regions", m.region_bytes_size()).Pool(m.region_names()).status());
  WAYBILL_RETURN_IF_ERROR(TableCheck("tensors", m.tensor_dtypes_size())
                              .Pool(m.tensor_names())
                              .Pool(m.tensor_shapes())
                              .status());
  WAYBILL_RETURN_IF_ERROR(TableCheck("shards", m.shard_tensors_size())
                              .Column(m.shard_dtypes_size())
                              .Column(m.schema_version() == kPlainVersion ? m.shard_tensors_size()
                                                                          : m.shard_contents_size())
                              .Column(m.schema_version() == kPlainVersion
                                          ? m.shard_tensors_size()
                                          : m.shard_quantisations_size())
                              .Column(m.shard_regions_size())
                              .Column(m.shard_offsets_size())
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
  WAYBILL_RETURN_IF_ERROR(
      TableCheck("engine orders", m.ordered_shards_size()).Pool(m.engine_orders()).status());
  return TableCheck("aliases", m.alias_tensors_size()).Pool(m.alias_names()).status();
}

// The name of each shard's engine order; a view of nothing where it has none.
absl::StatusOr<std::vector<absl::string_view>> DecodeOrders(const proto::Manifest& m) {
  std::vector<absl::string_view> orders(static_cast<size_t>(m.shard_tensors_size()));
  for (int i = 0; i < m.ordered_shards_size(); ++i) {
    const uint32_t shard = m.ordered_shards(i);
    const absl::string_view name = NameAt(m.engine_orders(), i);
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

absl::StatusOr<Format> DecodeFormat(const proto::Manifest& m, int shard) {
  Format format;
  WAYBILL_ASSIGN_OR_RETURN(format.dtype, DtypeFromNumber(m.shard_dtypes(shard)));
  if (m.schema_version() == kPlainVersion || m.shard_contents(shard) == 0) return format;
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

}  // namespace

std::string EncodeManifest(const Manifest& manifest) {
  proto::Manifest m;
  const bool ordered = !manifest.shards_in_engine_order().empty();
  const bool quantised = ordered || manifest.has_quantised();
  m.set_schema_version(ordered ? kOrderedVersion : quantised ? kQuantisedVersion : kPlainVersion);
  std::vector<Quantisation> quantisations;
  m.set_host(manifest.host());
  for (const Nic& nic : manifest.nics()) {
    proto::Nic* out = m.add_nics();
    out->set_name(nic.name);
    out->set_rail(nic.rail);
    out->set_numa_node(nic.numa_node);
    out->set_bytes_per_second(nic.bytes_per_second);
  }
  for (uint32_t i = 0; i < manifest.region_count(); ++i) {
    AddName(m.mutable_region_names(), manifest.region_name(i));
    m.add_region_bytes(manifest.region_bytes(i));
  }
  for (uint32_t i = 0; i < manifest.tensor_count(); ++i) {
    AddName(m.mutable_tensor_names(), manifest.tensor_name(i));
    AddNumbers(m.mutable_tensor_shapes(), manifest.tensor_shape(i));
    m.add_tensor_dtypes(static_cast<uint32_t>(manifest.tensor_dtype(i)));
  }
  for (uint32_t i = 0; i < manifest.shard_count(); ++i) {
    const ShardView shard = manifest.shard(i);
    m.add_shard_tensors(shard.tensor_index);
    m.add_shard_dtypes(static_cast<uint32_t>(shard.format.dtype));
    m.add_shard_regions(shard.place.region_index);
    m.add_shard_offsets(shard.place.offset_bytes);
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
  for (uint32_t i = 0; i < manifest.padding_count(); ++i) {
    const PaddingView padding = manifest.padding(i);
    m.add_padding_regions(padding.place.region_index);
    m.add_padding_offsets(padding.place.offset_bytes);
    m.add_padding_element_bytes(padding.element_bytes);
    AddNumbers(m.mutable_padding_extents(), padding.extents);
    AddNumbers(m.mutable_padding_strides(), padding.place.strides);
  }
  for (uint32_t i = 0; i < manifest.alias_count(); ++i) {
    AddName(m.mutable_alias_names(), manifest.alias_name(i));
    m.add_alias_tensors(manifest.alias_tensor(i));
  }
  for (const Quantisation& q : quantisations) EncodeQuantisation(q, m.add_quantisations());
  return m.SerializeAsString();
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view bytes) {
  proto::Manifest m;
  if (!m.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("manifest: ", bytes.size(), " bytes are not its encoding"));
  }
  if (m.schema_version() < kPlainVersion || m.schema_version() > kOrderedVersion) {
    return absl::InvalidArgumentError(absl::StrCat("manifest: schema version ", m.schema_version(),
                                                   ", this program knows ", kPlainVersion, " to ",
                                                   kOrderedVersion));
  }
  WAYBILL_RETURN_IF_ERROR(CheckTables(m));
  Manifest manifest;
  manifest.set_host(m.host());
  for (const proto::Nic& nic : m.nics()) {
    manifest.nics().push_back({.name = nic.name(),
                               .rail = nic.rail(),
                               .numa_node = nic.numa_node(),
                               .bytes_per_second = nic.bytes_per_second()});
  }
  for (int i = 0; i < m.region_bytes_size(); ++i) {
    manifest.AddRegion(NameAt(m.region_names(), i), m.region_bytes(i));
  }
  for (int i = 0; i < m.tensor_dtypes_size(); ++i) {
    WAYBILL_ASSIGN_OR_RETURN(const Dtype dtype, DtypeFromNumber(m.tensor_dtypes(i)));
    manifest.AddTensor(NameAt(m.tensor_names(), i), NumbersAt(m.tensor_shapes(), i), dtype);
  }
  WAYBILL_ASSIGN_OR_RETURN(const std::vector<absl::string_view> orders, DecodeOrders(m));
  for (int i = 0; i < m.shard_tensors_size(); ++i) {
    WAYBILL_ASSIGN_OR_RETURN(const Format format, DecodeFormat(m, i));
    const auto begins = NumbersAt(m.shard_begins(), i);
    const auto ends = NumbersAt(m.shard_ends(), i);
    if (begins.size() != ends.size()) {
      return absl::InvalidArgumentError(absl::StrCat("manifest: shard ", i, ": ", begins.size(),
                                                     " begins and ", ends.size(), " ends"));
    }
    manifest.AddShard(m.shard_tensors(i), format, Box(begins, ends),
                      {.region_index = m.shard_regions(i),
                       .offset_bytes = m.shard_offsets(i),
                       .strides = NumbersAt(m.shard_strides(), i),
                       .engine_order = orders[static_cast<size_t>(i)]});
  }
  for (int i = 0; i < m.padding_regions_size(); ++i) {
    manifest.AddPadding(m.padding_element_bytes(i), NumbersAt(m.padding_extents(), i),
                        {.region_index = m.padding_regions(i),
                         .offset_bytes = m.padding_offsets(i),
                         .strides = NumbersAt(m.padding_strides(), i)});
  }
  for (int i = 0; i < m.alias_tensors_size(); ++i) {
    manifest.AddAlias(NameAt(m.alias_names(), i), m.alias_tensors(i));
  }
  return manifest;
}

}  // namespace waybill
