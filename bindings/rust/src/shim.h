// The C ABI, in the shapes that the cxx bridge of ffi.rs takes: handles are numbers, a status comes
// with what its error says, and outputs are written on success only.
#ifndef WAYBILL_BINDINGS_RUST_SRC_SHIM_H_
#define WAYBILL_BINDINGS_RUST_SRC_SHIM_H_

#include <cstdint>

#include "rust/cxx.h"

namespace waybill::rust_shim {

// Of the bridge, which includes this file.
struct ControllerConfig;
struct LogSink;
struct PaddingConfig;
struct PlanSummary;
struct Progress;
struct PublishConfig;
struct Quantisation;
struct RankConfig;
struct RawEvent;
struct ShardConfig;
struct Status;
struct TrainerConfig;
struct WorkerConfig;
struct WorkerState;

rust::Str version();
uint32_t abi_version();
rust::Str status_name(int32_t status);
int64_t now_ns();
uint32_t dtype_size(uint32_t dtype);
rust::Str dtype_name(uint32_t dtype);

Status context_create(rust::Box<LogSink> sink, bool logs, uint64_t& context);
Status context_describe(uint64_t context, rust::String& json);
void context_destroy(uint64_t context);

Status queue_create(uint64_t context, uint64_t& queue);
bool queue_wait(uint64_t queue, RawEvent& event);
void queue_post(uint64_t queue, uint64_t token);
void queue_destroy(uint64_t queue);

Status region_create(uint64_t context, uint8_t* data, uint64_t size_bytes, uint32_t kind,
                     bool read_only, rust::Str name, uint64_t& region);
void region_destroy(uint64_t region);

Status quantisation_named(rust::Str name, Quantisation& quantisation);
Status manifest_create(uint64_t& manifest);
Status manifest_add_region(uint64_t manifest, rust::Str name, uint64_t size_bytes, uint32_t& index);
Status manifest_add_tensor(uint64_t manifest, rust::Str name, uint32_t dtype,
                           rust::Slice<const int64_t> shape, uint32_t& index);
Status manifest_add_shard(uint64_t manifest, const ShardConfig& shard, uint32_t& index);
Status manifest_add_padding(uint64_t manifest, const PaddingConfig& padding, uint32_t& index);
Status manifest_add_alias(uint64_t manifest, rust::Str name, uint32_t tensor_index,
                          uint32_t& index);
uint32_t manifest_region_count(uint64_t manifest);
uint64_t manifest_region_size(uint64_t manifest, uint32_t region_index);
Status manifest_encode(uint64_t manifest, rust::Vec<uint8_t>& bytes);
Status manifest_decode(rust::Slice<const uint8_t> bytes, uint64_t& manifest);
Status manifest_describe(uint64_t manifest, rust::String& json);
void manifest_destroy(uint64_t manifest);

Status layout_open(rust::Str checkpoint, rust::Str model, uint32_t layers, uint64_t& layout);
Status layout_trainer_manifest(uint64_t layout, rust::Str sharding, uint32_t rank,
                               uint64_t& manifest);
Status layout_worker_manifest(uint64_t layout, rust::Str sharding, uint32_t rank, rust::Str format,
                              rust::Str dtype, uint64_t& manifest);
Status layout_worker_parameters(uint64_t layout, rust::Str sharding, uint32_t rank,
                                rust::Str format, rust::Str dtype, rust::String& json);
Status layout_load(uint64_t layout, uint64_t manifest, rust::Slice<uint8_t> data);
void layout_destroy(uint64_t layout);

Status plan_build(rust::Slice<const uint64_t> trainers, rust::Slice<const uint64_t> workers,
                  uint64_t smallest_piece_bytes, uint64_t& plan);
Status plan_summarise(uint64_t plan, PlanSummary& summary);
Status plan_explain(uint64_t plan, rust::Str format, rust::String& text);
void plan_destroy(uint64_t plan);

Status controller_start(uint64_t context, const ControllerConfig& config, uint64_t& controller);
Status controller_address(uint64_t controller, rust::String& address);
Status controller_status(uint64_t controller, rust::String& json);
Status controller_query(uint64_t context, rust::Str address, rust::Str token, int64_t deadline_ns,
                        rust::String& json);
void controller_destroy(uint64_t controller);

Status trainer_create(uint64_t context, const RankConfig& rank, const TrainerConfig& config,
                      uint64_t& trainer);
Status trainer_join(uint64_t trainer, int64_t deadline_ns, uint64_t token);
Status trainer_publish(uint64_t trainer, const PublishConfig& config, uint64_t token,
                       uint64_t& update);
Status trainer_progress(uint64_t trainer, Progress& progress);
Status trainer_describe(uint64_t trainer, rust::String& json);
Status trainer_leave(uint64_t trainer, uint64_t token);
void trainer_destroy(uint64_t trainer);

Status worker_create(uint64_t context, const RankConfig& rank, const WorkerConfig& config,
                     uint64_t& worker);
Status worker_join(uint64_t worker, int64_t deadline_ns, uint64_t token);
Status worker_state(uint64_t worker, WorkerState& state);
Status worker_progress(uint64_t worker, Progress& progress);
Status worker_describe(uint64_t worker, rust::String& json);
Status worker_snapshot(uint64_t worker, rust::Str holder, uint64_t& snapshot);
Status worker_leave(uint64_t worker, uint64_t token);
void worker_destroy(uint64_t worker);

uint64_t snapshot_version(uint64_t snapshot);
Status snapshot_region(uint64_t snapshot, uint32_t region_index, size_t& address, size_t& size);
void snapshot_destroy(uint64_t snapshot);

Status update_accept(uint64_t update, uint32_t event);
Status update_refuse(uint64_t update, uint32_t event, rust::Str reason);
Status update_cancel(uint64_t update);
void update_destroy(uint64_t update);

}  // namespace waybill::rust_shim

#endif  // WAYBILL_BINDINGS_RUST_SRC_SHIM_H_
