// A job in one process through the C ABI, for tests: one tensor of kRows x kColumns BF16, its rows
// over the trainers, whole at each worker.
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

// Destroys the error, having read it.
CallResult TakeError(waybill_status_t status, waybill_error_t* error);
std::string TakeBlob(waybill_blob_t* blob);

// Where ranks have memory of their own, if it is not the host's.
class JobMemory {
 public:
  virtual ~JobMemory() = default;
  virtual void* Allocate(uint64_t size_bytes) = 0;                         // Freed with this.
  virtual void Copy(void* to, const void* from, uint64_t size_bytes) = 0;  // To there, or back.
};

struct JobOptions {
  uint32_t trainers = 1;
  uint32_t workers = 1;
  uint32_t mode = WAYBILL_MODE_SHADOW;
  uint32_t ask = 0;
  std::string fabric = "auto";
  JobMemory* device = nullptr;  // A device's; outlives the job.
  waybill_log_sink_t log_sink = nullptr;
  void* log_user = nullptr;
};

class Job {
 public:
  static constexpr int64_t kRows = 64;
  static constexpr int64_t kColumns = 32;
  static constexpr uint64_t kBytes = kRows * kColumns * 2;

  // Dies with a message where anything fails.
  explicit Job(const JobOptions& options = {});
  ~Job();

  void Join();
  // All trainers; the token is the version. Fills their memory before.
  void Publish(uint64_t version, waybill_update_t** update = nullptr);
  void Fill(uint64_t version);
  // The next event of that kind; others go into `others`. Dies after 20 s.
  waybill_event_t Await(uint32_t kind);
  // Waits for the end of a publish of all trainers, and the outcome of all groups.
  void AwaitCommitted(uint64_t version);
  // One more, whose region is made anew; as the constructor makes them.
  void MakeTrainer(uint32_t t);

  // Every byte of what worker `w` shows is of that version.
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
  // At `memory`, or on the device.
  waybill_region_options_t RegionOptions(std::vector<uint16_t>& memory) const;

  const JobOptions options_;
  std::vector<std::vector<uint16_t>> memory_, worker_memory_;
  std::vector<void*> device_memory_;  // Of the trainers.
};

// Of one rank: rows [begin, end) of "weight" in one region.
waybill_manifest_t* MakeManifest(int64_t begin, int64_t end);

}  // namespace waybill::capi

#endif  // WAYBILL_CAPI_TESTING_JOB_H_
