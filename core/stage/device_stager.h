// Stages pieces whose source is a GPU's memory: the GPU's kernels pack, transform and digest them
// there, and what comes out is copied to a staging slot.
#ifndef WAYBILL_CORE_STAGE_DEVICE_STAGER_H_
#define WAYBILL_CORE_STAGE_DEVICE_STAGER_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/plan/exchange.h"
#include "core/plan/route_table.h"
#include "core/stage/element_reader.h"
#include "core/stage/piece_walk.h"
#include "core/stage/scale_values.h"
#include "core/stage/stage_piece.h"
#include "core/tensor/box.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/leaf_sum.h"
#include "kernels/elements.h"

namespace waybill {

// Waits for no stream but its own. Allocates nothing after SetTables(), but where there are NaNs or
// infinities. Thread-safe as said.
class DeviceStager final : public ElementReader {
 public:
  struct Options {
    uint64_t chunk_bytes = 0;
    size_t most_pieces = 0;  // Of any chunk.
    uint32_t lanes = 1;      // Chunks at once.
    // Where the slots are; pinned while this lives, if it can be: else copies are slower.
    absl::Span<std::byte> slots;
  };
  // kInternal: the GPU has no room, or cannot be used; says why.
  static absl::StatusOr<std::unique_ptr<DeviceStager>> Create(
      std::shared_ptr<kernels::cuda::Device> device, const Options& options);
  ~DeviceStager() override;

  // Room for what is worked out of each table; they outlive this. Once, before anything else.
  absl::Status SetTables(absl::Span<const ScaleTable> tables);

  // [one thread, while no chunk is staged] A new update: what went wrong is forgotten.
  void Begin();

  // [likewise] Quantises by what `values` knows now.
  void TakeFactors(uint32_t table, const ScaleValues& values);

  // One chunk: its pieces are queued, then waited for. One thread.
  class Chunk {
   public:
    // May wait for another chunk to end.
    explicit Chunk(DeviceStager* stager);
    ~Chunk();
    Chunk(const Chunk&) = delete;
    Chunk& operator=(const Chunk&) = delete;

    // As StagePacked() and QuantisePacked(), of values that are all known; `table` is their number.
    // In the order of the slot.
    void Stage(const RouteShape& shape, const std::byte* source, uint64_t begin, uint64_t end,
               std::byte* slot, Digests digests);
    void Quantise(const RouteShape& shape, const Box& box, uint32_t table,
                  const ScaleValues& values, const std::byte* source, uint64_t begin, uint64_t end,
                  std::byte* slot, Digests digests);

    // When all of it is in its slots. The parts of the routes' digests, in the order of the calls;
    // valid while this lives.
    absl::Span<const uint64_t> Finish();

   private:
    friend class DeviceStager;
    DeviceStager& stager_;
    const uint32_t lane_;
  };

  // `table` is one of SetTables().
  void CombineMaxima(const ScaleTable& table, const std::byte* source, kernels::Wide type,
                     kernels::Wide via, float* maxima) override;
  uint64_t CountNonFinite(const std::byte* data, kernels::Wide type, int64_t pitch_bytes,
                          size_t rows, size_t columns) override;

  // [any thread] The first thing that went wrong since Begin(): what was staged is worth nothing.
  absl::Status status() const;

 private:
  struct Lane {
    kernels::cuda::Stream stream = nullptr;
    std::byte* scratch = nullptr;     // The device's.
    uint64_t* device_sums = nullptr;  // Likewise.
    std::vector<uint64_t> sums;
    uint64_t used_bytes = 0;  // Of the scratch memory.
    size_t pieces = 0;
    bool taken = false;
  };
  struct Table {
    float* factors = nullptr;   // The device's; maxima before.
    std::vector<float> maxima;  // Of each block.
  };
  // A piece in the scratch memory.
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

  DeviceStager(std::shared_ptr<kernels::cuda::Device> device, const Options& options)
      : device_(std::move(device)), options_(options) {}

  absl::Status MakeLanes();
  uint32_t Take();
  void Return(uint32_t lane);
  // Whether it went well; keeps the first that did not.
  bool Check(const kernels::cuda::Outcome& outcome);
  Output Place(Lane& lane, uint64_t begin, uint64_t end, Digests digests);
  void StageBlock(const Lane& lane, const RouteShape& shape, const PieceBlock& block,
                  const std::byte* source, std::byte* destination, bool all, Output& output);
  void Send(const Lane& lane, const Output& output, std::byte* slot);

  const std::shared_ptr<kernels::cuda::Device> device_;
  const Options options_;
  bool pinned_ = false;
  std::vector<Lane> lanes_;
  const ScaleTable* first_table_ = nullptr;
  std::vector<Table> tables_;

  mutable std::mutex mutex_;
  std::condition_variable returned_;
  absl::Status status_;
};

}  // namespace waybill

#endif  // WAYBILL_CORE_STAGE_DEVICE_STAGER_H_
