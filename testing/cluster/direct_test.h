// SPDX-License-Identifier: Apache-2.0

// What tests of updates into a GPU's memory begin with.
#ifndef WAYBILL_TESTING_CLUSTER_DIRECT_TEST_H_
#define WAYBILL_TESTING_CLUSTER_DIRECT_TEST_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "core/fabric/local/local_fabric.h"
#include "core/fabric/verbs/verbs_fabric.h"
#include "testing/cluster/device_memory.h"
#include "testing/fake_cuda/fake_cuda.h"
#include "testing/fake_verbs/fake_network.h"

namespace waybill {

// What the workers' GPU says of itself.
inline void SayOfGpu(FakeCudaWrites writes, bool exports_dmabuf = true) {
  FakeCudaSayOfNics(0, writes, exports_dmabuf);
}

enum class DirectNetwork { kVerbs, kLocal };

inline const char* NameOf(DirectNetwork network) {
  return network == DirectNetwork::kVerbs ? "Verbs" : "Local";
}

class DirectTest : public testing::Test {
 protected:
  explicit DirectTest(DirectNetwork network = DirectNetwork::kVerbs)
      : is_local_(network == DirectNetwork::kLocal) {
    nic_.after_read = FakeCudaNicHasRead;
  }
  ~DirectTest() override { FakeCudaFail(-1); }

  static ClusterOptions InPlace(ClusterOptions options = {}) {
    options.mode = Mode::kInPlace;
    options.user_memory = true;
    options.worker_memory = std::make_shared<DeviceMemory>();
    return options;
  }
  // Into a GPU in that mode: the engine's own memory, or buffers that Waybill allocates there.
  static ClusterOptions IntoGpu(Mode mode, ClusterOptions options = {}) {
    options = InPlace(options);
    options.mode = mode;
    options.user_memory = mode != Mode::kShadow;
    if (mode != Mode::kInPlace) options.arena_gpu = 0;
    return options;
  }
  void Make(const ClusterOptions& options) {
    cluster_ = std::make_unique<Cluster>(options, [this](const std::string& name) {
      if (is_local_) return *MakeLocalFabric();
      network_.Host(name).AddDevice("mlx5_0", nic_);
      return *MakeVerbsFabric({.library = &network_.Host(name)});
    });
    workers_ = options.workers;
    ASSERT_EQ(cluster_->Connect().message(), "");
  }
  std::string PublishAndCheck(uint64_t version) {
    cluster_->FillTrainers(version);
    if (absl::Status status = cluster_->Publish(version); !status.ok()) return status.ToString();
    for (uint32_t w = 0; w < workers_; ++w) {
      if (!cluster_->Shows(w, version)) return "it is not shown to the byte";
    }
    return "";
  }

  // Frees a trainer's tensor on a GPU before the second update.
  void ExpectAFreedTensorIsNamed(ClusterOptions options) {
    const auto tensors = std::make_shared<DeviceMemory>();
    options.trainer_memory = tensors;
    options.direct = true;
    Make(options);
    ASSERT_EQ(PublishAndCheck(1), "");
    ASSERT_TRUE(cluster_->Prepare(2).ok());
    tensors->FreeFirst();
    const absl::Status status = cluster_->Start(0);
    EXPECT_TRUE(absl::StrContains(status.message(), "read region \"weights\": ")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "is no memory of a GPU any more")) << status;
  }

  const bool is_local_;
  fake_verbs::FakeNetwork network_;
  fake_verbs::DeviceOptions nic_;
  std::unique_ptr<Cluster> cluster_;
  uint32_t workers_ = 0;
};

class LocalDirectTest : public DirectTest {
 protected:
  LocalDirectTest() : DirectTest(DirectNetwork::kLocal) {}
};

class DirectNetworkTest : public DirectTest, public testing::WithParamInterface<DirectNetwork> {
 protected:
  DirectNetworkTest() : DirectTest(GetParam()) {}
};

}  // namespace waybill

#endif  // WAYBILL_TESTING_CLUSTER_DIRECT_TEST_H_
