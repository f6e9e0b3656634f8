// Trainers, workers, their updates and snapshots.
#include <bit>

#include "bindings/python/waybill/extension.h"

namespace waybill::python {

namespace {

using KeptTrainer = Kept<Trainer>;
using KeptUpdate = Kept<Update>;
using KeptWorker = Kept<Worker>;
using KeptSnapshot = Kept<Snapshot>;

// The options of a rank, and the text that they point to.
class Identity {
 public:
  Identity(std::string controller, std::string job, std::string token, std::string group,
           uint32_t rank, uint32_t world, std::string fabric, std::string host, std::string nics,
           uint32_t gid_index, uint32_t ack_timeout, uint32_t traffic_class)
      : text_{std::move(controller), std::move(job),  std::move(token), std::move(group),
              std::move(fabric),     std::move(host), std::move(nics)} {
    options_.controller = text_[0].c_str();
    options_.job = text_[1].c_str();
    options_.token = text_[2].c_str();
    options_.group = text_[3].c_str();
    options_.fabric = text_[4].c_str();
    options_.host = text_[5].c_str();
    options_.nics = text_[6].c_str();
    options_.rank = rank;
    options_.world = world;
    options_.gid_index = gid_index;
    options_.ack_timeout = ack_timeout;
    options_.traffic_class = traffic_class;
  }
  Identity(const Identity&) = delete;

  const waybill_rank_options_t* get() const { return &options_; }

 private:
  const std::vector<std::string> text_;
  waybill_rank_options_t options_ = WAYBILL_RANK_OPTIONS_INIT;
};

std::vector<waybill_region_t*> HandlesOf(const std::vector<const KeptRegion*>& regions) {
  std::vector<waybill_region_t*> handles;
  handles.reserve(regions.size());
  for (const KeptRegion* region : regions) handles.push_back(region->get());
  return handles;
}

std::unique_ptr<KeptTrainer> MakeTrainer(const KeptContext& context, const Identity& identity,
                                         const KeptManifest& manifest,
                                         const std::vector<const KeptRegion*>& regions,
                                         const KeptQueue& queue, uint64_t ring_bytes,
                                         uint32_t stage_threads) {
  const std::vector<waybill_region_t*> handles = HandlesOf(regions);
  waybill_trainer_options_t options = WAYBILL_TRAINER_OPTIONS_INIT;
  options.rank = identity.get();
  options.manifest = manifest.get();
  options.regions = handles.data();
  options.region_count = static_cast<uint32_t>(handles.size());
  options.queue = queue.get();
  options.ring_bytes = ring_bytes;
  options.stage_threads = stage_threads;
  return std::make_unique<KeptTrainer>(
      Make<Trainer>(waybill_trainer_create, context.get(), &options));
}

std::unique_ptr<KeptWorker> MakeWorker(const KeptContext& context, const Identity& identity,
                                       const KeptManifest& manifest,
                                       const std::vector<const KeptRegion*>& regions,
                                       const KeptQueue& queue, uint32_t mode, uint32_t ask,
                                       uint32_t verify_threads, bool catch_up,
                                       std::optional<uint32_t> gpu) {
  const std::vector<waybill_region_t*> handles = HandlesOf(regions);
  waybill_worker_options_t options = WAYBILL_WORKER_OPTIONS_INIT;
  options.rank = identity.get();
  options.manifest = manifest.get();
  options.regions = handles.data();
  options.region_count = static_cast<uint32_t>(handles.size());
  options.mode = mode;
  options.ask = ask;
  options.verify_threads = verify_threads;
  options.no_catch_up = catch_up ? 0 : 1;
  options.gpu = gpu ? *gpu + 1 : 0;
  options.queue = queue.get();
  return std::make_unique<KeptWorker>(Make<Worker>(waybill_worker_create, context.get(), &options));
}

std::unique_ptr<KeptUpdate> Publish(const KeptTrainer& self, uint64_t version, int64_t deadline_ns,
                                    bool digests, bool fail_on_nonfinite, bool hold,
                                    uintptr_t after_event, uint64_t token) {
  waybill_publish_options_t options = WAYBILL_PUBLISH_OPTIONS_INIT;
  options.version = version;
  options.deadline_ns = deadline_ns;
  options.no_digests = digests ? 0 : 1;
  options.fail_on_nonfinite = fail_on_nonfinite ? 1 : 0;
  options.hold = hold ? 1 : 0;
  options.after_event = std::bit_cast<void*>(after_event);
  return std::make_unique<KeptUpdate>(
      Make<Update>(waybill_trainer_publish, self.get(), &options, token));
}

template <typename Rank, typename Ask>
py::dict Progress(const Rank& self, Ask ask) {
  using namespace py::literals;
  static const char* const kStages[WAYBILL_STAGE_COUNT] = {"exchange", "stage",  "post",  "wait",
                                                           "receive",  "verify", "commit"};
  waybill_progress_t p = WAYBILL_PROGRESS_INIT;
  {
    const py::gil_scoped_release unlocked;  // Who holds what is asked may be logging.
    Call(ask, self.get(), &p);
  }
  py::dict stages;
  for (int i = 0; i < WAYBILL_STAGE_COUNT; ++i) {
    if (p.begin_ns[i] != 0) stages[kStages[i]] = py::make_tuple(p.begin_ns[i], p.end_ns[i]);
  }
  return py::dict("version"_a = p.version, "planned_bytes"_a = p.planned_bytes, "bytes"_a = p.bytes,
                  "writes"_a = p.writes, "stores"_a = p.stores, "immediates"_a = p.immediates,
                  "maxima_messages"_a = p.maxima_messages, "maxima_bytes"_a = p.maxima_bytes,
                  "nonfinite"_a = p.nonfinite, "stages_ns"_a = stages);
}

py::dict State(const KeptWorker& self) {
  using namespace py::literals;
  waybill_worker_state_t s = WAYBILL_WORKER_STATE_INIT;
  {
    const py::gil_scoped_release unlocked;
    Call(waybill_worker_state, self.get(), &s);
  }
  return py::dict("shown_version"_a = s.shown_version, "joined"_a = s.joined != 0,
                  "dirty"_a = s.dirty != 0, "in_doubt"_a = s.in_doubt != 0,
                  "catching_up"_a = s.catching_up != 0, "stragglers"_a = s.stragglers,
                  "repeats"_a = s.repeats, "renewals"_a = s.renewals);
}

// One region of a snapshot, for the buffer protocol: whoever has a view of it has the hold.
class SnapshotBytes {
 public:
  // `owner`: of memory that is not Waybill's.
  SnapshotBytes(std::shared_ptr<KeptSnapshot> snapshot, uint32_t region_index, py::object owner)
      : owner_(std::move(owner)), snapshot_(std::move(snapshot)) {
    Call(waybill_snapshot_region, snapshot_->get(), region_index, &data_, &size_bytes_);
  }
  uintptr_t address() const { return reinterpret_cast<uintptr_t>(data_); }
  // Of host memory only.
  py::buffer_info Info() const {
    // Read-only: pybind11 refuses whoever asks to write.
    return py::buffer_info(static_cast<const uint8_t*>(data_),
                           static_cast<py::ssize_t>(size_bytes_));
  }

 private:
  const py::object owner_;
  const std::shared_ptr<KeptSnapshot> snapshot_;
  const void* data_ = nullptr;
  uint64_t size_bytes_ = 0;
};

void AddTrainer(py::module_& module) {
  module.attr("ANY_RANK") = WAYBILL_ANY_RANK;
  py::class_<KeptUpdate>(module, "Update")
      .def(
          "cancel", [](const KeptUpdate& self) { Call(waybill_update_cancel, self.get()); },
          Unlocked());
  py::class_<KeptTrainer>(module, "Trainer")
      .def(py::init(&MakeTrainer), py::arg("context"), py::arg("identity"), py::arg("manifest"),
           py::arg("regions"), py::arg("queue"), py::arg("ring_bytes"), py::arg("stage_threads"))
      .def(
          "join",
          [](const KeptTrainer& self, int64_t deadline_ns, uint64_t token) {
            Call(waybill_trainer_join, self.get(), deadline_ns, token);
          },
          py::arg("deadline_ns"), py::arg("token"), Unlocked())
      .def("publish", &Publish, py::arg("version"), py::arg("deadline_ns"), py::arg("digests"),
           py::arg("fail_on_nonfinite"), py::arg("hold"), py::arg("after_event"), py::arg("token"),
           Unlocked())
      .def(
          "release",
          [](const KeptTrainer& self, uint64_t token) {
            Call(waybill_trainer_release, self.get(), token);
          },
          py::arg("token"), Unlocked())
      .def(
          "leave",
          [](const KeptTrainer& self, uint64_t token) {
            Call(waybill_trainer_leave, self.get(), token);
          },
          py::arg("token"), Unlocked())
      .def("progress",
           [](const KeptTrainer& self) { return Progress(self, waybill_trainer_progress); })
      .def(
          "describe",
          [](const KeptTrainer& self) { return Bytes(waybill_trainer_describe, self.get()); },
          Unlocked())
      .def_property_readonly("handle", &HandleOf<KeptTrainer>)
      .def("close", &KeptTrainer::Close);
}

void AddWorker(py::module_& module) {
  py::class_<KeptWorker>(module, "Worker")
      .def(py::init(&MakeWorker), py::arg("context"), py::arg("identity"), py::arg("manifest"),
           py::arg("regions"), py::arg("queue"), py::arg("mode"), py::arg("ask"),
           py::arg("verify_threads"), py::arg("catch_up"), py::arg("gpu"))
      .def(
          "join",
          [](const KeptWorker& self, int64_t deadline_ns, uint64_t token) {
            Call(waybill_worker_join, self.get(), deadline_ns, token);
          },
          py::arg("deadline_ns"), py::arg("token"), Unlocked())
      .def(
          "leave",
          [](const KeptWorker& self, uint64_t token) {
            Call(waybill_worker_leave, self.get(), token);
          },
          py::arg("token"), Unlocked())
      .def(
          "pause", [](const KeptWorker& self) { Call(waybill_worker_pause, self.get()); },
          Unlocked())
      .def(
          "resume",
          [](const KeptWorker& self, bool contents_kept) {
            Call(waybill_worker_resume, self.get(), contents_kept ? 1U : 0U);
          },
          py::arg("contents_kept"), Unlocked())
      .def("state", &State)
      .def("progress",
           [](const KeptWorker& self) { return Progress(self, waybill_worker_progress); })
      .def(
          "describe",
          [](const KeptWorker& self) { return Bytes(waybill_worker_describe, self.get()); },
          Unlocked())
      .def(
          "snapshot",
          [](const KeptWorker& self, const std::string& holder) {
            return std::make_shared<KeptSnapshot>(
                Make<Snapshot>(waybill_worker_snapshot, self.get(), holder.c_str()));
          },
          py::arg("holder"), Unlocked())
      .def("close", &KeptWorker::Close);
  py::class_<KeptSnapshot, std::shared_ptr<KeptSnapshot>>(module, "Snapshot")
      .def_property_readonly(
          "version", [](const KeptSnapshot& self) { return waybill_snapshot_version(self.get()); })
      .def(
          "region",
          [](const std::shared_ptr<KeptSnapshot>& self, uint32_t index, py::object owner) {
            return std::make_unique<SnapshotBytes>(self, index, std::move(owner));
          },
          py::arg("index"), py::arg("owner"));
  py::class_<SnapshotBytes>(module, "SnapshotBytes", py::buffer_protocol())
      .def_property_readonly("address", &SnapshotBytes::address)
      .def_buffer(&SnapshotBytes::Info);
}

}  // namespace

void AddRanks(py::module_& module) {
  py::class_<Identity>(module, "Identity")
      .def(py::init<std::string, std::string, std::string, std::string, uint32_t, uint32_t,
                    std::string, std::string, std::string, uint32_t, uint32_t, uint32_t>(),
           py::arg("controller"), py::arg("job"), py::arg("token"), py::arg("group"),
           py::arg("rank"), py::arg("world"), py::arg("fabric"), py::arg("host"), py::arg("nics"),
           py::arg("gid_index"), py::arg("ack_timeout"), py::arg("traffic_class"));
  AddTrainer(module);
  AddWorker(module);
}

}  // namespace waybill::python
