// Of the shim: controllers, trainers, workers, and their updates.
#include <waybill/waybill.h>

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

template <typename Call>
Status TellProgress(Progress& progress, const Call& call) {
  waybill_progress_t c = WAYBILL_PROGRESS_INIT;
  Status status = Try([&](waybill_error_t** e) { return call(&c, e); });
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
  return Make<waybill_controller_t>(controller, [&](auto out, auto e) {
    return waybill_controller_start(From<waybill_context_t>(context), &options, out, e);
  });
}
Status controller_address(uint64_t controller, rust::String& address) {
  return Say(address, [&](auto out, auto e) {
    return waybill_controller_address(From<waybill_controller_t>(controller), out, e);
  });
}
Status controller_status(uint64_t controller, rust::String& json) {
  return Say(json, [&](auto out, auto e) {
    return waybill_controller_status(From<waybill_controller_t>(controller), out, e);
  });
}
Status controller_query(uint64_t context, rust::Str address, rust::Str token, int64_t deadline_ns,
                        rust::String& json) {
  return Say(json, [&](auto out, auto e) {
    return waybill_controller_query(From<waybill_context_t>(context), Text(address).c_str(),
                                    Text(token).c_str(), deadline_ns, out, e);
  });
}
void controller_destroy(uint64_t controller) {
  waybill_controller_destroy(From<waybill_controller_t>(controller));
}

Status trainer_create(uint64_t context, const RankConfig& rank, const TrainerConfig& config,
                      uint64_t& trainer) {
  const RankOptions rank_options(rank);
  waybill_trainer_options_t options = WAYBILL_TRAINER_OPTIONS_INIT;
  options.rank = rank_options.get();
  options.manifest = From<waybill_manifest_t>(config.manifest);
  const auto regions = Handles<waybill_region_t>(config.regions);
  options.regions = regions.data();
  options.region_count = static_cast<uint32_t>(config.regions.size());
  options.stage_threads = config.stage_threads;
  options.ring_bytes = config.ring_bytes;
  options.queue = From<waybill_queue_t>(config.queue);
  return Make<waybill_trainer_t>(trainer, [&](auto out, auto e) {
    return waybill_trainer_create(From<waybill_context_t>(context), &options, out, e);
  });
}
Status trainer_join(uint64_t trainer, int64_t deadline_ns, uint64_t token) {
  return Try([&](auto e) {
    return waybill_trainer_join(From<waybill_trainer_t>(trainer), deadline_ns, token, e);
  });
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
  return Make<waybill_update_t>(update, [&](auto out, auto e) {
    return waybill_trainer_publish(From<waybill_trainer_t>(trainer), &options, token, out, e);
  });
}
Status trainer_progress(uint64_t trainer, Progress& progress) {
  return TellProgress(progress, [&](auto out, auto e) {
    return waybill_trainer_progress(From<waybill_trainer_t>(trainer), out, e);
  });
}
Status trainer_describe(uint64_t trainer, rust::String& json) {
  return Say(json, [&](auto out, auto e) {
    return waybill_trainer_describe(From<waybill_trainer_t>(trainer), out, e);
  });
}
Status trainer_leave(uint64_t trainer, uint64_t token) {
  return Try(
      [&](auto e) { return waybill_trainer_leave(From<waybill_trainer_t>(trainer), token, e); });
}
void trainer_destroy(uint64_t trainer) {
  waybill_trainer_destroy(From<waybill_trainer_t>(trainer));
}

Status worker_create(uint64_t context, const RankConfig& rank, const WorkerConfig& config,
                     uint64_t& worker) {
  const RankOptions rank_options(rank);
  waybill_worker_options_t options = WAYBILL_WORKER_OPTIONS_INIT;
  options.rank = rank_options.get();
  options.manifest = From<waybill_manifest_t>(config.manifest);
  const auto regions = Handles<waybill_region_t>(config.regions);
  options.regions = regions.data();
  options.region_count = static_cast<uint32_t>(config.regions.size());
  options.mode = config.mode;
  options.ask = config.ask;
  options.verify_threads = config.verify_threads;
  options.queue = From<waybill_queue_t>(config.queue);
  return Make<waybill_worker_t>(worker, [&](auto out, auto e) {
    return waybill_worker_create(From<waybill_context_t>(context), &options, out, e);
  });
}
Status worker_join(uint64_t worker, int64_t deadline_ns, uint64_t token) {
  return Try([&](auto e) {
    return waybill_worker_join(From<waybill_worker_t>(worker), deadline_ns, token, e);
  });
}
Status worker_rejoin(uint64_t worker, uint64_t token) {
  return Try(
      [&](auto e) { return waybill_worker_rejoin(From<waybill_worker_t>(worker), token, e); });
}
Status worker_state(uint64_t worker, WorkerState& state) {
  waybill_worker_state_t c = WAYBILL_WORKER_STATE_INIT;
  Status status =
      Try([&](auto e) { return waybill_worker_state(From<waybill_worker_t>(worker), &c, e); });
  state = {c.shown_version, c.joined != 0, c.dirty != 0, c.in_doubt != 0,
           c.stragglers,    c.repeats,     c.renewals};
  return status;
}
Status worker_progress(uint64_t worker, Progress& progress) {
  return TellProgress(progress, [&](auto out, auto e) {
    return waybill_worker_progress(From<waybill_worker_t>(worker), out, e);
  });
}
Status worker_describe(uint64_t worker, rust::String& json) {
  return Say(json, [&](auto out, auto e) {
    return waybill_worker_describe(From<waybill_worker_t>(worker), out, e);
  });
}
Status worker_snapshot(uint64_t worker, rust::Str holder, uint64_t& snapshot) {
  return Make<waybill_snapshot_t>(snapshot, [&](auto out, auto e) {
    return waybill_worker_snapshot(From<waybill_worker_t>(worker), Text(holder).c_str(), out, e);
  });
}
Status worker_leave(uint64_t worker, uint64_t token) {
  return Try(
      [&](auto e) { return waybill_worker_leave(From<waybill_worker_t>(worker), token, e); });
}
void worker_destroy(uint64_t worker) { waybill_worker_destroy(From<waybill_worker_t>(worker)); }

uint64_t snapshot_version(uint64_t snapshot) {
  return waybill_snapshot_version(From<waybill_snapshot_t>(snapshot));
}
Status snapshot_region(uint64_t snapshot, uint32_t region_index, size_t& address, size_t& size) {
  const void* data = nullptr;
  uint64_t size_bytes = 0;
  Status status = Try([&](auto e) {
    return waybill_snapshot_region(From<waybill_snapshot_t>(snapshot), region_index, &data,
                                   &size_bytes, e);
  });
  address = reinterpret_cast<size_t>(data);
  size = size_bytes;
  return status;
}
void snapshot_destroy(uint64_t snapshot) {
  waybill_snapshot_destroy(From<waybill_snapshot_t>(snapshot));
}

Status update_accept(uint64_t update, uint32_t event) {
  return Try(
      [&](auto e) { return waybill_update_accept(From<waybill_update_t>(update), event, e); });
}
Status update_refuse(uint64_t update, uint32_t event, rust::Str reason) {
  return Try([&](auto e) {
    return waybill_update_refuse(From<waybill_update_t>(update), event, Text(reason).c_str(), e);
  });
}
Status update_cancel(uint64_t update) {
  return Try([&](auto e) { return waybill_update_cancel(From<waybill_update_t>(update), e); });
}
void update_destroy(uint64_t update) { waybill_update_destroy(From<waybill_update_t>(update)); }

}  // namespace waybill::rust_shim
