// Layouts and plans: pure, no network.
#include "bindings/python/waybill/extension.h"

namespace waybill::python {
namespace {

using KeptLayout = Kept<Layout>;
using KeptPlan = Kept<Plan>;

std::unique_ptr<KeptLayout> OpenLayout(const std::string& checkpoint, const std::string& model,
                                       uint32_t layers) {
  waybill_layout_options_t options = WAYBILL_LAYOUT_OPTIONS_INIT;
  options.checkpoint = checkpoint.c_str();
  options.model = model.c_str();
  options.layers = layers;
  const py::gil_scoped_release unlocked;
  return std::make_unique<KeptLayout>(Make<Layout>(waybill_layout_open, &options));
}

std::unique_ptr<KeptManifest> TrainerManifest(const KeptLayout& self, const std::string& sharding,
                                              uint32_t rank) {
  return std::make_unique<KeptManifest>(
      Make<Manifest>(waybill_layout_trainer_manifest, self.get(), sharding.c_str(), rank));
}

std::unique_ptr<KeptManifest> WorkerManifest(const KeptLayout& self, const std::string& sharding,
                                             uint32_t rank, const std::string& format,
                                             const std::string& dtype) {
  return std::make_unique<KeptManifest>(Make<Manifest>(waybill_layout_worker_manifest, self.get(),
                                                       sharding.c_str(), rank, format.c_str(),
                                                       dtype.c_str()));
}

std::unique_ptr<KeptPlan> BuildPlan(const std::vector<const KeptManifest*>& trainers,
                                    const std::vector<const KeptManifest*>& workers,
                                    uint64_t smallest_piece_bytes) {
  std::vector<const waybill_manifest_t*> sources, destinations;
  for (const KeptManifest* manifest : trainers) sources.push_back(manifest->get());
  for (const KeptManifest* manifest : workers) destinations.push_back(manifest->get());
  waybill_plan_options_t options = WAYBILL_PLAN_OPTIONS_INIT;
  options.trainers = sources.data();
  options.trainer_count = static_cast<uint32_t>(sources.size());
  options.workers = destinations.data();
  options.worker_count = static_cast<uint32_t>(destinations.size());
  options.smallest_piece_bytes = smallest_piece_bytes;
  const py::gil_scoped_release unlocked;
  return std::make_unique<KeptPlan>(Make<Plan>(waybill_plan_build, &options));
}

py::dict Summarise(const KeptPlan& self) {
  using namespace py::literals;
  waybill_plan_summary_t s = WAYBILL_PLAN_SUMMARY_INIT;
  Call(waybill_plan_summarise, self.get(), &s);
  return py::dict(
      "hash"_a = s.hash, "bytes"_a = s.bytes, "routes"_a = s.routes, "writes"_a = s.writes,
      "maxima"_a = s.maxima, "maxima_messages"_a = s.maxima_messages,
      "busiest_to_bound"_a = s.busiest_to_bound, "busiest_to_mean"_a = s.busiest_to_mean);
}

}  // namespace

void AddPlanning(py::module_& module) {
  py::class_<KeptLayout>(module, "Layout")
      .def(py::init(&OpenLayout), py::arg("checkpoint"), py::arg("model"), py::arg("layers"))
      .def("trainer_manifest", &TrainerManifest, py::arg("sharding"), py::arg("rank"), Unlocked())
      .def("worker_manifest", &WorkerManifest, py::arg("sharding"), py::arg("rank"),
           py::arg("format"), py::arg("dtype"), Unlocked())
      .def(
          "worker_parameters",
          [](const KeptLayout& self, const std::string& sharding, uint32_t rank,
             const std::string& format, const std::string& dtype) {
            return Bytes(waybill_layout_worker_parameters, self.get(), sharding.c_str(), rank,
                         format.c_str(), dtype.c_str());
          },
          py::arg("sharding"), py::arg("rank"), py::arg("format"), py::arg("dtype"), Unlocked())
      .def(
          "load",
          [](const KeptLayout& self, const KeptManifest& manifest, uintptr_t address,
             uint64_t size_bytes) {
            void* data = reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
            Call(waybill_layout_load, self.get(), manifest.get(), data, size_bytes);
          },
          py::arg("manifest"), py::arg("address"), py::arg("size_bytes"), Unlocked());
  py::class_<KeptPlan>(module, "Plan")
      .def(py::init(&BuildPlan), py::arg("trainers"), py::arg("workers"),
           py::arg("smallest_piece_bytes"))
      .def("summary", &Summarise)
      .def(
          "explain",
          [](const KeptPlan& self, const std::string& format) {
            return Bytes(waybill_plan_explain, self.get(), format.c_str());
          },
          py::arg("format"), Unlocked());
}

}  // namespace waybill::python
