// Stages pieces whose source is a GPU's memory: the GPU's kernels pack, transform and digest them
// there, into a staging slot of the device, or on the way to one of the host. Also digests pieces
// that have arrived in a GPU's memory.
#ifndef WAYBILL_CORE_STAGE_DEVICE_STAGER_H_
#define WAYBILL_CORE_STAGE_DEVICE_STAGER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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

// Waits for its own streams only. Allocates nothing after SetTables() unless there are NaNs or
// infinities. Each method says which threads may call it.
class DeviceStager final : public ElementReader {
  struct Workspace;

 public:
  struct Options {
    std::string what = "stage from a GPU";  // Before errors.
    uint64_t chunk_bytes = 0;
    size_t most_pieces = 0;        // The most pieces of a chunk.
    uint32_t parallel_chunks = 1;  // The number of chunks staged at a time.
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

  // [one thread, while no chunk is staged] Begins an update: forgets the last one's failure.
  void Begin();

  // [one thread, while no chunk is staged] Takes the factors of `values`, to quantise by them.
  void TakeFactors(uint32_t table, const ScaleValues& values);

  // One chunk, on one thread. Its pieces are queued, then waited for. The first piece waits until
  // fewer than Options::parallel_chunks chunks are being staged. A chunk without pieces waits for
  // nothing, and asks nothing of the GPU.
  class Chunk {
   public:
    explicit Chunk(DeviceStager* stager) : stager_(*stager) {}
    ~Chunk();
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;

    // Queue what StagePacked() and QuantisePacked() do. All scales of `values`, which are those of
    // table `table`, are known. Call them in the order of the slot.
    void Stage(const RouteShape& shape, const std::byte* source, uint64_t begin, uint64_t end,
               std::byte* slot, Digests digests);
    void Quantise(const RouteShape& shape, const Box& box, uint32_t table,
                  const ScaleValues& values, const std::byte* source, uint64_t begin, uint64_t end,
                  std::byte* slot, Digests digests);

    // Queues a copy of what is packed in host memory already.
    void TakePacked(const std::byte* packed, uint64_t size_bytes, std::byte* slot);

    // Queue what the functions of these names do.
    void DigestSource(const RouteShape& shape, const std::byte* source, uint64_t begin,
                      uint64_t end);
    void DigestInPlace(const RouteShape& shape, const std::byte* destination, uint64_t begin,
                       uint64_t end);

    // Waits until everything is in the slot. Returns the parts of the routes' digests, in the order
    // of the calls. They are valid while the object lives.
    absl::Span<const uint64_t> Finish();

   private:
    friend class DeviceStager;
    // A shape whose two sides are the same.
    void Digest(const RouteShape& shape, const std::byte* memory, uint64_t begin, uint64_t end);

    // Returns this chunk's workspace. The first call waits for one, and clears its sums.
    Workspace& TakeWorkspace();

    DeviceStager& stager_;
    std::optional<uint32_t> workspace_;  // Its number, once it is taken.
  };

  // `table` is one of SetTables().
  void CombineMaxima(const ScaleTable& table, const std::byte* source, kernels::Wide type,
                     kernels::Wide via, float* maxima) override;
  uint64_t CountNonFinite(const std::byte* data, kernels::Wide type, int64_t pitch_bytes,
                          size_t rows, size_t columns) override;

  // [any thread] Returns the first failure since Begin(). If there is one, what was staged must not
  // be shown.
  absl::Status status() const;

 private:
  struct Workspace {
    Stream stream = nullptr;
    std::byte* scratch = nullptr;     // The device's.
    uint64_t* device_sums = nullptr;  // Likewise.
    std::vector<uint64_t> sums;
    uint64_t used_bytes = 0;  // Bytes of the scratch memory in use.
    size_t pieces = 0;
    bool taken = false;
  };
  struct Table {
    float* factors = nullptr;   // The device's; maxima before.
    std::vector<float> maxima;  // One for each block.
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
  uint32_t Take();
  void Return(uint32_t workspace);
  // Returns whether it went well. Keeps the first that did not.
  bool Check(const absl::Status& status);
  bool Check(const kernels::cuda::Outcome& launch) { return Check(ToStatus(launch)); }
  // `slot`: where it is to come, or null.
  Output Place(Workspace& workspace, uint64_t begin, uint64_t end, Digests digests,
               std::byte* slot);
  void StageBlock(const Workspace& workspace, const RouteShape& shape, const PieceBlock& block,
                  const std::byte* source, std::byte* destination, bool all, Output& output);
  void Send(const Workspace& workspace, const Output& output, std::byte* slot);

  const std::shared_ptr<Device> device_;
  const Options options_;
  bool pinned_ = false;
  std::vector<Workspace> workspaces_;
  const ScaleTable* first_table_ = nullptr;
  std::vector<Table> tables_;

  mutable std::mutex mutex_;
  std::condition_variable returned_;
  absl::Status status_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_DEVICE_STAGER_H_
