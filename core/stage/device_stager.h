// SPDX-License-Identifier: Apache-2.0

// Stages pieces whose source is a GPU's memory: the GPU's kernels pack, transform and digest them
// there, into a staging slot of the device, or on the way to one of the host. Also digests pieces
// that have arrived in a GPU's memory.
#ifndef WAYBILL_CORE_STAGE_DEVICE_STAGER_H_
#define WAYBILL_CORE_STAGE_DEVICE_STAGER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/device/device.h"
#include "core/plan/exchange.h"
#include "core/plan/route_table.h"
#include "core/stage/element_reader.h"
#include "core/stage/piece_walk.h"
#include "core/stage/scale_values.h"
#include "core/stage/stage_piece.h"
#include "core/tensor/box.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/leaf_sum.h"
#include "kernels/elements.h"

namespace waybill {

// How many chunks a pass best has. A round trip to a GPU takes 10 to 20 us, in which an H200 copies
// some 20 MiB.
inline constexpr uint32_t kChunksPerPass = 128;

// Waits for its own streams only. Allocates nothing after SetTables() unless there are NaNs or
// infinities. Each method says which threads may call it.
class DeviceStager final : public ElementReader {
  struct Workspace;

 public:
  struct Options {
    std::string what = "stage from a GPU";  // Before errors.
    uint64_t chunk_bytes = 0;               // The longest piece that is staged.
    size_t most_pieces = 0;                 // The most pieces of a pass.
    uint32_t parallel_passes = 1;           // The number of passes at a time.
    // The memory of the slots. It is pinned while the stager lives; copies are slower if that
    // fails.
    absl::Span<std::byte> slots = {};
    // Slots in the device's own memory, or none.
    absl::Span<std::byte> device_slots = {};
  };
  // kInternal: the GPU has no room, or cannot be used.
  static absl::StatusOr<std::unique_ptr<DeviceStager>> Create(std::shared_ptr<Device> device,
                                                              const Options& options);
  ~DeviceStager() override;

  // Allocates the maxima and factors of each table. Call it once, before anything else. The tables
  // must outlive the stager.
  absl::Status SetTables(absl::Span<const ScaleTable> tables);

  // [one thread, while there is no pass] Begins an update: forgets the last one's failure.
  void Begin();

  // What one thread queues, and then waits for once: a round trip is as long as many
  // chunks take. The first call that queues something waits until there are fewer
  // than Options::parallel_passes other passes. A pass that queues nothing waits for nothing, and
  // needs no stager.
  class Pass {
   public:
    explicit Pass(DeviceStager* stager) : stager_(stager) {}
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    // Queue what StagePacked() and QuantisePacked() do with a piece of a route. All scales of
    // `values`, which are those of table `table`, are known.
    void Stage(uint32_t route, const RouteShape& shape, const std::byte* source, uint64_t begin,
               uint64_t end, std::byte* slot, Digests digests);
    void Quantise(uint32_t route, const RouteShape& shape, const Box& box, uint32_t table,
                  const ScaleValues& values, const std::byte* source, uint64_t begin, uint64_t end,
                  std::byte* slot, Digests digests);

    // Queues a copy of what is packed in host memory already.
    void TakePacked(const std::byte* packed, uint64_t size_bytes, std::byte* slot);

    // Queue what the functions of these names do. A piece may be of any length.
    void DigestSource(uint32_t route, const RouteShape& shape, const std::byte* source,
                      uint64_t begin, uint64_t end);
    void DigestInPlace(uint32_t route, const RouteShape& shape, const std::byte* destination,
                       uint64_t begin, uint64_t end);

    // Queues a copy of the factors of `values` to the GPU, to quantise by them.
    void TakeFactors(uint32_t table, const ScaleValues& values);

    // Waits until everything is done. Calls visit(route, sum) with the part of the route's digest
    // for each piece whose digest was asked for.
    void Finish(absl::FunctionRef<void(uint32_t route, uint64_t sum)> visit);
    void Finish() {
      Finish([](uint32_t, uint64_t) {});
    }

   private:
    friend class DeviceStager;
    // A shape whose two sides are the same.
    void Digest(uint32_t route, const RouteShape& shape, const std::byte* memory, uint64_t begin,
                uint64_t end);

    // Returns this pass's workspace. The first call waits for one, and clears its sums.
    Workspace& TakeWorkspace();

    DeviceStager* const stager_;
    std::optional<uint32_t> workspace_;  // Its number, once it is taken.
  };

  // The tables are some of SetTables(). The GPU is waited for once.
  void CombineMaxima(absl::Span<const Shard> shards) override;
  uint64_t CountNonFinite(const std::byte* data, kernels::Wide type, int64_t pitch_bytes,
                          size_t rows, size_t columns) override;

  // [any thread] Returns the first failure since Begin(). If there is one, what was staged must not
  // be shown.
  absl::Status status() const;

 private:
  // Host memory that the device copies to and from without waiting.
  struct HostMemory {
    std::unique_ptr<std::byte, void (*)(void*)> data{nullptr, std::free};
    PinnedMemory pinned;
  };
  struct Workspace {
    Stream stream = nullptr;
    // The device's. What is queued later may use it again, since a stream keeps the order.
    std::byte* scratch = nullptr;
    uint64_t* device_sums = nullptr;  // Likewise.
    uint64_t* sums = nullptr;         // In `host`.
    std::vector<uint32_t> routes;     // The route of each sum.
    HostMemory host;
    bool taken = false;
  };
  struct Table {
    size_t first_block = 0;  // Of all tables' blocks.
    size_t blocks = 0;
    float* factors = nullptr;  // In `factors_`; maxima before.
    float* values = nullptr;   // As many, in `host_factors_`.
  };
  // A piece in a slot of the device, or in the scratch memory.
  struct Output {
    std::byte* bytes = nullptr;
    uint64_t size_bytes = 0;
    kernels::cuda::LeafSum digest = {};
    bool absorbed = false;  // The digest is taken where the bytes are made.

    kernels::cuda::LeafSum Absorb() {
      absorbed = true;
      return digest;
    }
  };

  DeviceStager(std::shared_ptr<Device> device, const Options& options)
      : device_(std::move(device)), options_(options) {}

  absl::Status MakeWorkspaces();
  Table& TableOf(const Shard& shard) {
    return tables_[static_cast<size_t>(shard.table - first_table_)];
  }
  void QueueMaxima(const Shard& shard, const Table& here, Stream stream);
  absl::StatusOr<HostMemory> AllocateHost(uint64_t size_bytes) const;
  uint32_t Take();
  void Return(uint32_t workspace);
  // Returns whether it went well. Keeps the first that did not.
  bool Check(const absl::Status& status);
  bool Check(const kernels::cuda::Outcome& launch) { return Check(ToStatus(launch)); }
  // Returns the sum to which the pass adds the digest of a piece of the route.
  kernels::cuda::LeafSum AddSum(Workspace& workspace, uint32_t route, uint64_t begin,
                                Digests digests);
  // `slot`: where it is to come, or null.
  Output Place(const Workspace& workspace, uint64_t size_bytes, kernels::cuda::LeafSum digest,
               std::byte* slot);
  void StageBlock(const Workspace& workspace, const RouteShape& shape, const PieceBlock& block,
                  const std::byte* source, std::byte* destination, bool all, Output& output);
  void Send(const Workspace& workspace, const Output& output, std::byte* slot);

  const std::shared_ptr<Device> device_;
  const Options options_;
  PinnedMemory pinned_slots_;
  std::vector<Workspace> workspaces_;
  const ScaleTable* first_table_ = nullptr;
  std::vector<Table> tables_;
  float* factors_ = nullptr;  // The device's, of all tables.
  HostMemory host_factors_;   // Likewise.

  mutable std::mutex mutex_;
  std::condition_variable returned_;
  absl::Status status_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_DEVICE_STAGER_H_
