// The part of the shim for contexts, queues, regions, and what needs no network.
#include "waybill/src/shim.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "waybill/src/ffi.rs.h"
#include "waybill/src/shim_calls.h"

namespace waybill::rust_shim {
namespace {

const int64_t* OrNull(rust::Slice<const int64_t> numbers) {
  return numbers.empty() ? nullptr : numbers.data();
}

waybill_quantisation_t ToC(const Quantisation& q) {
  waybill_quantisation_t c = WAYBILL_QUANTISATION_INIT;
  c.dtype = q.dtype;
  c.from_dtype = q.from_dtype;
  c.scale_dtype = q.scale_dtype;
  c.rounding = q.rounding;
  c.division = q.division;
  c.stores_reciprocal = q.stores_reciprocal ? 1 : 0;
  c.epsilon = q.epsilon;
  c.block_rows = q.block_rows;
  c.block_columns = q.block_columns;
  c.scale_rows = q.scale_rows;
  c.scale_columns = q.scale_columns;
  return c;
}

void Log(void* user, uint32_t level, const char* line) {
  static_cast<const LogSink*>(user)->log(level, rust::String::lossy(line));
}

}  // namespace

rust::Str version() { return waybill_version(); }
uint32_t abi_version() { return waybill_abi_version(); }
rust::Str status_name(int32_t status) { return waybill_status_name(status); }
int64_t now_ns() { return waybill_now_ns(); }
uint32_t dtype_size(uint32_t dtype) { return waybill_dtype_size(dtype); }
rust::Str dtype_name(uint32_t dtype) { return waybill_dtype_name(dtype); }

Status context_create(rust::Box<LogSink> sink, bool logs, uint64_t& context) {
  waybill_context_options_t options = WAYBILL_CONTEXT_OPTIONS_INIT;
  if (logs) {
    options.log_sink = Log;
    options.log_user = sink.into_raw();
  }
  return Make<waybill_context_t>(context, waybill_context_create, &options);
}
Status context_describe(uint64_t context, rust::String& json) {
  return Say(json, waybill_context_describe, At{context});
}
void context_destroy(uint64_t context) { waybill_context_destroy(At{context}); }

Status queue_create(uint64_t context, uint64_t& queue) {
  return Make<waybill_queue_t>(queue, waybill_queue_create, At{context});
}

bool queue_wait(uint64_t queue, RawEvent& event) {
  waybill_event_t c = WAYBILL_EVENT_INIT;
  waybill_status_t status = WAYBILL_DEADLINE_EXCEEDED;
  while (status == WAYBILL_DEADLINE_EXCEEDED) {
    status = waybill_queue_wait(At{queue}, 0, &c, nullptr);
  }
  if (status != WAYBILL_OK) return false;
  event.kind = c.kind;
  event.token = c.token;
  event.user = c.user;
  event.version = c.version;
  event.status = {c.status, waybill_error_scope(c.error),
                  rust::String::lossy(waybill_error_message(c.error))};
  event.answer_wanted = c.answer_wanted != 0;
  event.pause_ns = c.pause_ns;
  event.group = rust::String::lossy(static_cast<const char*>(waybill_blob_data(c.group)),
                                    waybill_blob_size(c.group));
  event.update = 0;
  if (event.answer_wanted) {
    event.update = reinterpret_cast<uint64_t>(c.update);
    c.update = nullptr;  // It is the receiver's.
  }
  waybill_event_release(&c);
  return true;
}

void queue_post(uint64_t queue, uint64_t token) {
  (void)!waybill_queue_post(At{queue}, token, nullptr);
}
void queue_destroy(uint64_t queue) { waybill_queue_destroy(At{queue}); }

Status region_create(uint64_t context, uint8_t* data, uint64_t size_bytes, uint32_t kind,
                     bool read_only, rust::Str name, uint64_t& region) {
  const std::string text = Text(name);
  waybill_region_options_t options = WAYBILL_REGION_OPTIONS_INIT;
  options.data = data;
  options.size_bytes = size_bytes;
  options.kind = kind;
  options.read_only = read_only ? 1 : 0;
  options.name = text.c_str();
  return Make<waybill_region_t>(region, waybill_region_create, At{context}, &options);
}
void region_destroy(uint64_t region) { waybill_region_destroy(At{region}); }

Status quantisation_named(rust::Str name, Quantisation& quantisation) {
  waybill_quantisation_t c = WAYBILL_QUANTISATION_INIT;
  Status status = Try(waybill_quantisation_named, Text(name).c_str(), &c);
  if (status.code != WAYBILL_OK) return status;
  quantisation = {c.dtype,      c.from_dtype,   c.scale_dtype,
                  c.rounding,   c.division,     c.stores_reciprocal != 0,
                  c.epsilon,    c.block_rows,   c.block_columns,
                  c.scale_rows, c.scale_columns};
  return status;
}

Status manifest_create(uint64_t& manifest) {
  return Make<waybill_manifest_t>(manifest, waybill_manifest_create);
}
Status manifest_add_region(uint64_t manifest, rust::Str name, uint64_t size_bytes,
                           uint32_t& index) {
  return Try(waybill_manifest_add_region, At{manifest}, Text(name).c_str(), size_bytes, &index);
}
Status manifest_add_tensor(uint64_t manifest, rust::Str name, uint32_t dtype,
                           rust::Slice<const int64_t> shape, uint32_t& index) {
  return Try(waybill_manifest_add_tensor, At{manifest}, Text(name).c_str(), dtype, OrNull(shape),
             static_cast<uint32_t>(shape.size()), &index);
}
Status manifest_add_shard(uint64_t manifest, const ShardConfig& shard, uint32_t& index) {
  waybill_quantisation_t quantisation = WAYBILL_QUANTISATION_INIT;
  waybill_shard_t c = WAYBILL_SHARD_INIT;
  c.tensor_index = shard.tensor_index;
  c.region_index = shard.region_index;
  c.offset_bytes = shard.offset_bytes;
  c.dtype = shard.dtype;
  c.content = shard.content;
  if (!shard.quantisation.empty()) {
    quantisation = ToC(shard.quantisation[0]);
    c.quantisation = &quantisation;
  }
  c.dimensions = static_cast<uint32_t>(shard.begin.size());
  c.begin = OrNull(shard.begin);
  c.end = OrNull(shard.end);
  c.strides = OrNull(shard.strides);
  return Try(waybill_manifest_add_shard, At{manifest}, &c, &index);
}
Status manifest_add_padding(uint64_t manifest, const PaddingConfig& padding, uint32_t& index) {
  waybill_padding_t c = WAYBILL_PADDING_INIT;
  c.region_index = padding.region_index;
  c.element_bytes = padding.element_bytes;
  c.offset_bytes = padding.offset_bytes;
  c.dimensions = static_cast<uint32_t>(padding.extents.size());
  c.extents = OrNull(padding.extents);
  c.strides = OrNull(padding.strides);
  return Try(waybill_manifest_add_padding, At{manifest}, &c, &index);
}
Status manifest_add_alias(uint64_t manifest, rust::Str name, uint32_t tensor_index,
                          uint32_t& index) {
  return Try(waybill_manifest_add_alias, At{manifest}, Text(name).c_str(), tensor_index, &index);
}
uint32_t manifest_region_count(uint64_t manifest) {
  return waybill_manifest_region_count(At{manifest});
}
uint64_t manifest_region_size(uint64_t manifest, uint32_t region_index) {
  return waybill_manifest_region_size(At{manifest}, region_index);
}
Status manifest_encode(uint64_t manifest, rust::Vec<uint8_t>& bytes) {
  waybill_blob_t* made = nullptr;
  Status status = Try(waybill_manifest_encode, At{manifest}, &made);
  const Blob blob(made);
  const auto* data = static_cast<const uint8_t*>(waybill_blob_data(made));
  bytes.reserve(waybill_blob_size(made));
  std::copy(data, data + waybill_blob_size(made), std::back_inserter(bytes));
  return status;
}
Status manifest_decode(rust::Slice<const uint8_t> bytes, uint64_t& manifest) {
  return Make<waybill_manifest_t>(manifest, waybill_manifest_decode, bytes.data(), bytes.size());
}
Status manifest_describe(uint64_t manifest, rust::String& json) {
  return Say(json, waybill_manifest_describe, At{manifest});
}
void manifest_destroy(uint64_t manifest) { waybill_manifest_destroy(At{manifest}); }

Status layout_open(rust::Str checkpoint, rust::Str model, uint32_t layers, uint64_t& layout) {
  const std::string folder = Text(checkpoint), name = Text(model);
  waybill_layout_options_t options = WAYBILL_LAYOUT_OPTIONS_INIT;
  options.checkpoint = folder.c_str();
  options.model = name.c_str();
  options.layers = layers;
  return Make<waybill_layout_t>(layout, waybill_layout_open, &options);
}
Status layout_trainer_manifest(uint64_t layout, rust::Str sharding, uint32_t rank,
                               uint64_t& manifest) {
  return Make<waybill_manifest_t>(manifest, waybill_layout_trainer_manifest, At{layout},
                                  Text(sharding).c_str(), rank);
}
Status layout_worker_manifest(uint64_t layout, rust::Str sharding, uint32_t rank, rust::Str format,
                              rust::Str dtype, uint64_t& manifest) {
  return Make<waybill_manifest_t>(manifest, waybill_layout_worker_manifest, At{layout},
                                  Text(sharding).c_str(), rank, Text(format).c_str(),
                                  Text(dtype).c_str());
}
Status layout_worker_parameters(uint64_t layout, rust::Str sharding, uint32_t rank,
                                rust::Str format, rust::Str dtype, rust::String& json) {
  return Say(json, waybill_layout_worker_parameters, At{layout}, Text(sharding).c_str(), rank,
             Text(format).c_str(), Text(dtype).c_str());
}
Status layout_load(uint64_t layout, uint64_t manifest, rust::Slice<uint8_t> data) {
  return Try(waybill_layout_load, At{layout}, At{manifest}, data.data(), data.size());
}
void layout_destroy(uint64_t layout) { waybill_layout_destroy(At{layout}); }

Status plan_build(rust::Slice<const uint64_t> trainers, rust::Slice<const uint64_t> workers,
                  uint64_t smallest_piece_bytes, uint64_t& plan) {
  waybill_plan_options_t options = WAYBILL_PLAN_OPTIONS_INIT;
  const auto of_trainers = Handles<const waybill_manifest_t>(trainers);
  const auto of_workers = Handles<const waybill_manifest_t>(workers);
  options.trainers = of_trainers.data();
  options.workers = of_workers.data();
  options.trainer_count = static_cast<uint32_t>(trainers.size());
  options.worker_count = static_cast<uint32_t>(workers.size());
  options.smallest_piece_bytes = smallest_piece_bytes;
  return Make<waybill_plan_t>(plan, waybill_plan_build, &options);
}
Status plan_summarise(uint64_t plan, PlanSummary& summary) {
  waybill_plan_summary_t c = WAYBILL_PLAN_SUMMARY_INIT;
  Status status = Try(waybill_plan_summarise, At{plan}, &c);
  summary = {c.hash,   c.bytes,           c.routes,           c.writes,
             c.maxima, c.maxima_messages, c.busiest_to_bound, c.busiest_to_mean};
  return status;
}
Status plan_explain(uint64_t plan, rust::Str format, rust::String& text) {
  return Say(text, waybill_plan_explain, At{plan}, Text(format).c_str());
}
void plan_destroy(uint64_t plan) { waybill_plan_destroy(At{plan}); }

}  // namespace waybill::rust_shim
