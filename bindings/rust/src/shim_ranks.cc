// The part of the shim for controllers, trainers, workers, and their updates.
#include <algorithm>
#include <iterator>
#include <string>

#include "waybill/src/ffi.rs.h"
#include "waybill/src/shim.h"
#include "waybill/src/shim_calls.h"

namespace waybill::rust_shim {
namespace {

// Texts live in it, so it stays where it is.
class RankOptions {
 public:
  explicit RankOptions(const RankConfig& from)
      : texts_{Text(from.controller), Text(from.job),  Text(from.token), Text(from.group),
               Text(from.fabric),     Text(from.host), Text(from.nics)} {
    c_.controller = texts_[0].c_str();
    c_.job = texts_[1].c_str();
    c_.token = texts_[2].c_str();
    c_.group = texts_[3].c_str();
    c_.fabric = texts_[4].c_str();
    c_.host = texts_[5].c_str();
    c_.nics = texts_[6].c_str();
    c_.rank = from.rank;
    c_.world = from.world;
    c_.gid_index = from.gid_index;
    c_.ack_timeout = from.ack_timeout;
    c_.traffic_class = from.traffic_class;
    c_.user = from.user;
  }
  RankOptions(const RankOptions&) = delete;
  RankOptions& operator=(const RankOptions&) = delete;

  const waybill_rank_options_t* get() const { return &c_; }

 private:
  const std::string texts_[7];
  waybill_rank_options_t c_ = WAYBILL_RANK_OPTIONS_INIT;
};

template <typename... Call>
Status TellProgress(Progress& progress, const Call&... call) {
  waybill_progress_t c = WAYBILL_PROGRESS_INIT;
  Status status = Try(call..., &c);
  if (status.code != WAYBILL_OK) return status;
  progress = {c.version,         c.planned_bytes, c.bytes,     c.writes, c.stores, c.immediates,
              c.maxima_messages, c.maxima_bytes,  c.nonfinite, {},       {}};
  std::copy(std::begin(c.begin_ns), std::end(c.begin_ns), progress.begin_ns.begin());
  std::copy(std::begin(c.end_ns), std::end(c.end_ns), progress.end_ns.begin());
  return status;
}

}  // namespace

Status controller_start(uint64_t context, const ControllerConfig& config, uint64_t& controller) {
  const std::string listen = Text(config.listen), job = Text(config.job),
                    token = Text(config.token), log = Text(config.decision_log);
  waybill_controller_options_t options = WAYBILL_CONTROLLER_OPTIONS_INIT;
  options.listen = listen.c_str();
  options.job = job.c_str();
  options.token = token.c_str();
  options.decision_log = log.c_str();
  options.trainers = config.trainers;
  options.workers = config.workers;
  options.join_timeout_ns = config.join_timeout_ns;
  return Make<waybill_controller_t>(controller, waybill_controller_start, At{context}, &options);
}
Status controller_address(uint64_t controller, rust::String& address) {
  return Say(address, waybill_controller_address, At{controller});
}
Status controller_status(uint64_t controller, rust::String& json) {
  return Say(json, waybill_controller_status, At{controller});
}
Status controller_query(uint64_t context, rust::Str address, rust::Str token, int64_t deadline_ns,
                        rust::String& json) {
  return Say(json, waybill_controller_query, At{context}, Text(address).c_str(),
             Text(token).c_str(), deadline_ns);
}
void controller_destroy(uint64_t controller) { waybill_controller_destroy(At{controller}); }

Status trainer_create(uint64_t context, const RankConfig& rank, const TrainerConfig& config,
                      uint64_t& trainer) {
  const RankOptions rank_options(rank);
  waybill_trainer_options_t options = WAYBILL_TRAINER_OPTIONS_INIT;
  options.rank = rank_options.get();
  options.manifest = At{config.manifest};
  const auto regions = Handles<waybill_region_t>(config.regions);
  options.regions = regions.data();
  options.region_count = static_cast<uint32_t>(config.regions.size());
  options.stage_threads = config.stage_threads;
  options.ring_bytes = config.ring_bytes;
  options.queue = At{config.queue};
  return Make<waybill_trainer_t>(trainer, waybill_trainer_create, At{context}, &options);
}
Status trainer_join(uint64_t trainer, int64_t deadline_ns, uint64_t token) {
  return Try(waybill_trainer_join, At{trainer}, deadline_ns, token);
}
Status trainer_publish(uint64_t trainer, const PublishConfig& config, uint64_t token,
                       uint64_t& update) {
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  options.version = config.version;
  options.deadline_ns = config.deadline_ns;
  options.until_committed = config.until_committed ? 1 : 0;
  options.no_digests = config.no_digests ? 1 : 0;
  options.fail_on_nonfinite = config.fail_on_nonfinite ? 1 : 0;
  options.after_event = reinterpret_cast<void*>(config.after_event);
  return Make<waybill_update_t>(update, waybill_trainer_publish, At{trainer}, &options, token);
}
Status trainer_progress(uint64_t trainer, Progress& progress) {
  return TellProgress(progress, waybill_trainer_progress, At{trainer});
}
Status trainer_describe(uint64_t trainer, rust::String& json) {
  return Say(json, waybill_trainer_describe, At{trainer});
}
Status trainer_leave(uint64_t trainer, uint64_t token) {
  return Try(waybill_trainer_leave, At{trainer}, token);
}
void trainer_destroy(uint64_t trainer) { waybill_trainer_destroy(At{trainer}); }

Status worker_create(uint64_t context, const RankConfig& rank, const WorkerConfig& config,
                     uint64_t& worker) {
  const RankOptions rank_options(rank);
  waybill_worker_options_t options = WAYBILL_WORKER_OPTIONS_INIT;
  options.rank = rank_options.get();
  options.manifest = At{config.manifest};
  const auto regions = Handles<waybill_region_t>(config.regions);
  options.regions = regions.data();
  options.region_count = static_cast<uint32_t>(config.regions.size());
  options.mode = config.mode;
  options.ask = config.ask;
  options.verify_threads = config.verify_threads;
  options.queue = At{config.queue};
  return Make<waybill_worker_t>(worker, waybill_worker_create, At{context}, &options);
}
Status worker_join(uint64_t worker, int64_t deadline_ns, uint64_t token) {
  return Try(waybill_worker_join, At{worker}, deadline_ns, token);
}
Status worker_state(uint64_t worker, WorkerState& state) {
  waybill_worker_state_t c = WAYBILL_WORKER_STATE_INIT;
  Status status = Try(waybill_worker_state, At{worker}, &c);
  state = {c.shown_version, c.joined != 0, c.dirty != 0, c.in_doubt != 0,
           c.stragglers,    c.repeats,     c.renewals};
  return status;
}
Status worker_progress(uint64_t worker, Progress& progress) {
  return TellProgress(progress, waybill_worker_progress, At{worker});
}
Status worker_describe(uint64_t worker, rust::String& json) {
  return Say(json, waybill_worker_describe, At{worker});
}
Status worker_snapshot(uint64_t worker, rust::Str holder, uint64_t& snapshot) {
  return Make<waybill_snapshot_t>(snapshot, waybill_worker_snapshot, At{worker},
                                  Text(holder).c_str());
}
Status worker_leave(uint64_t worker, uint64_t token) {
  return Try(waybill_worker_leave, At{worker}, token);
}
void worker_destroy(uint64_t worker) { waybill_worker_destroy(At{worker}); }

uint64_t snapshot_version(uint64_t snapshot) { return waybill_snapshot_version(At{snapshot}); }
Status snapshot_region(uint64_t snapshot, uint32_t region_index, size_t& address, size_t& size) {
  const void* data = nullptr;
  uint64_t size_bytes = 0;
  Status status = Try(waybill_snapshot_region, At{snapshot}, region_index, &data, &size_bytes);
  address = reinterpret_cast<size_t>(data);
  size = size_bytes;
  return status;
}
void snapshot_destroy(uint64_t snapshot) { waybill_snapshot_destroy(At{snapshot}); }

Status update_accept(uint64_t update, uint32_t event) {
  return Try(waybill_update_accept, At{update}, event);
}
Status update_refuse(uint64_t update, uint32_t event, rust::Str reason) {
  return Try(waybill_update_refuse, At{update}, event, Text(reason).c_str());
}
Status update_cancel(uint64_t update) { return Try(waybill_update_cancel, At{update}); }
void update_destroy(uint64_t update) { waybill_update_destroy(At{update}); }

}  // namespace waybill::rust_shim
