// SPDX-License-Identifier: Apache-2.0

// A job in one process through the C ABI, for tests. It has one BF16 tensor of kRows x kColumns.
// The trainers share its rows, and each worker holds the whole.
#ifndef WAYBILL_CAPI_TESTING_JOB_H_
#define WAYBILL_CAPI_TESTING_JOB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "capi/waybill.h"

namespace waybill::capi {

struct CallResult {
  waybill_status_t status = WAYBILL_OK;
  std::string message;
  uint32_t scope = 0;
};

// Reads the error and destroys it.
CallResult TakeError(waybill_status_t status, waybill_error_t* error);
std::string TakeBlob(waybill_blob_t* blob);

// Memory for ranks that is not the host's.
class JobMemory {
 public:
  virtual ~JobMemory() = default;
  virtual void* Allocate(uint64_t size_bytes) = 0;  // Freed by the destructor.
  virtual void Copy(void* to, const void* from, uint64_t size_bytes) = 0;  // In either direction.
};

struct JobOptions {
  uint32_t trainers = 1;
  uint32_t workers = 1;
  uint32_t mode = WAYBILL_MODE_SHADOW;
  uint32_t ask = 0;
  const char* rack = nullptr;  // The rack of all ranks; null: unknown.
  std::string fabric = "auto";
  uint32_t gpu = 0;             // As the workers' options have it; with `device`.
  JobMemory* device = nullptr;  // GPU memory, which outlives the job; null: host memory.
  waybill_log_sink_t log_sink = nullptr;
  void* log_user = nullptr;
};

class Job {
 public:
  static constexpr int64_t kRows = 64;
  static constexpr int64_t kColumns = 32;
  static constexpr uint64_t kBytes = kRows * kColumns * 2;

  // Ends the process with a message if anything fails.
  explicit Job(const JobOptions& options = {});
  ~Job();

  void Join();
  // Fills the memory of all trainers, then has each publish `version` with the version as token.
  void Publish(uint64_t version, waybill_update_t** update = nullptr);
  void Fill(uint64_t version);
  // Returns the next event of that kind, and puts others into `others`. Ends the process after 20
  // s.
  waybill_event_t Await(uint32_t kind);
  // Waits until all trainers have ended their publish and all groups have an outcome.
  void AwaitCommitted(uint64_t version);
  // Makes another trainer with a new region, as the constructor does.
  void MakeTrainer(uint32_t t);

  // Returns true if worker `w` shows `version` and every byte of it is right.
  bool Shows(uint32_t w, uint64_t version) const;

  waybill_context_t* context = nullptr;
  waybill_queue_t* queue = nullptr;
  waybill_controller_t* controller = nullptr;
  std::string address;
  std::vector<waybill_trainer_t*> trainers;
  std::vector<waybill_worker_t*> workers;
  std::vector<waybill_region_t*> trainer_regions, worker_regions;
  std::vector<waybill_event_t> others;

 private:
  void MakeWorker(uint32_t w);
  waybill_rank_options_t RankOptions(uint32_t rank, uint32_t world) const;
  // Returns options for a region at `memory`, or on the GPU.
  waybill_region_options_t RegionOptions(std::vector<uint16_t>& memory) const;

  const JobOptions options_;
  std::vector<std::vector<uint16_t>> memory_, worker_memory_;
  std::vector<void*> device_memory_;  // One for each trainer.
};

// Returns the manifest of a rank that holds rows [begin, end) of "weight" in one region.
waybill_manifest_t* MakeManifest(int64_t begin, int64_t end);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_TESTING_JOB_H_
