// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/described_job/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

namespace waybill {
namespace {

using testing::HasSubstr;

constexpr char kLeast[] = R"(model: {name: m}
trainers: {sharding: fsdp=2}
workers: {sharding: tp=2}
)";

TEST(ClusterFile, EverythingButModelAndShardingsHasADefault) {
  const auto file = ParseClusterFile(kLeast, "a.yaml");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->model, "m");
  EXPECT_EQ(file->trainers.Describe(), "fsdp=2");
  EXPECT_EQ(file->workers.Describe(), "tp=2");
  EXPECT_EQ(file->mode, Mode::kShadow);
  EXPECT_DOUBLE_EQ(file->hardware.trainers.nic, 50e9);
}

TEST(ClusterFile, EveryKeyIsReadInItsUnit) {
  const auto file = ParseClusterFile(R"(
name: whole
digests: false
images: true
changed: 0.02
relays: never
model: {checkpoint: /models/m, layers: 3}
trainers:
  sharding: fsdp=2
  rates_gb_per_second: {copy: 1, transpose: 5, cast: 2, quantise: 3, digest: 4, compare: 6}
  memory: host
  ranks_per_host: 4
  nics_per_host: 8
  nic_gbit_per_second: 200
  pcie_gb_per_second: 32
  nvlink_gb_per_second: 300
  nic_reaches_gpu: false
  threads: 5
  cores: 64
  ring_mib: 16
workers: {sharding: tp=2, format: fp8-block, dtype: BF16, mode: in-place}
network:
  one_host: true
  tcp: true
  efficiency: 0.9
  latency_us: 7
  message_ns: 50
  post_ns: 60
  hosts_per_rack: 4
  shared_racks: true
  oversubscription: 2.5
  incast_efficiency: 0.8
  incast_senders: 12
  tcp_send_gb_per_second: 1.5
  tcp_receive_gb_per_second: 2.5
control: {message_us: 10, handle_us: 2, record_ms: 3, prepare_us: 4, show_us: 5}
stragglers: [{rank: worker 1, slowdown: 2.5}]
)",
                                     "a.yaml");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->name, "whole");
  EXPECT_FALSE(file->digests);
  EXPECT_TRUE(file->images);
  EXPECT_EQ(file->changed, 0.02);
  EXPECT_DOUBLE_EQ(file->hardware.trainers.rates.compare, 6e9);
  EXPECT_EQ(file->relays, Relays::kNever);
  EXPECT_EQ(file->checkpoint, "/models/m");
  EXPECT_EQ(file->layers, 3);
  EXPECT_EQ(file->format, "fp8-block");
  EXPECT_EQ(file->dtype, "BF16");
  EXPECT_EQ(file->mode, Mode::kInPlace);
  const simulate::Machine& machine = file->hardware.trainers;
  EXPECT_EQ(machine.memory, simulate::MemoryPlace::kHost);
  EXPECT_DOUBLE_EQ(machine.rates.copy, 1e9);  // Also where "memory" follows.
  EXPECT_DOUBLE_EQ(machine.rates.transpose, 5e9);
  EXPECT_DOUBLE_EQ(machine.rates.cast, 2e9);
  EXPECT_DOUBLE_EQ(machine.rates.quantise, 3e9);
  EXPECT_DOUBLE_EQ(machine.rates.digest, 4e9);
  EXPECT_EQ(machine.ranks_per_host, 4u);
  EXPECT_EQ(machine.nics_per_host, 8u);
  EXPECT_DOUBLE_EQ(machine.nic, 25e9);
  EXPECT_DOUBLE_EQ(machine.pcie, 32e9);
  EXPECT_DOUBLE_EQ(machine.nvlink, 300e9);
  EXPECT_FALSE(machine.nic_reaches_gpu);
  EXPECT_EQ(machine.threads, 5u);
  EXPECT_EQ(machine.cores, 64u);
  EXPECT_EQ(machine.ring_bytes, 16u << 20);
  const simulate::Network& network = file->hardware.network;
  EXPECT_TRUE(file->hardware.one_host);
  EXPECT_TRUE(file->hardware.by_tcp);
  EXPECT_DOUBLE_EQ(network.efficiency, 0.9);
  EXPECT_DOUBLE_EQ(network.latency, 7e-6);
  EXPECT_DOUBLE_EQ(network.message, 50e-9);
  EXPECT_DOUBLE_EQ(network.post, 60e-9);
  EXPECT_EQ(network.hosts_per_rack, 4u);
  EXPECT_TRUE(network.shared_racks);
  EXPECT_DOUBLE_EQ(network.oversubscription, 2.5);
  EXPECT_DOUBLE_EQ(network.incast_efficiency, 0.8);
  EXPECT_EQ(network.incast_senders, 12u);
  EXPECT_DOUBLE_EQ(network.tcp_send, 1.5e9);
  EXPECT_DOUBLE_EQ(network.tcp_receive, 2.5e9);
  const simulate::Control& control = file->hardware.control;
  EXPECT_DOUBLE_EQ(control.message, 10e-6);
  EXPECT_DOUBLE_EQ(control.handle, 2e-6);
  EXPECT_DOUBLE_EQ(control.record, 3e-3);
  EXPECT_DOUBLE_EQ(control.prepare, 4e-6);
  EXPECT_DOUBLE_EQ(control.show, 5e-6);
  ASSERT_EQ(file->hardware.stragglers.size(), 1u);
  EXPECT_EQ(file->hardware.stragglers[0].rank.role, Role::kWorker);
  EXPECT_EQ(file->hardware.stragglers[0].rank.rank, 1u);
  EXPECT_DOUBLE_EQ(file->hardware.stragglers[0].slowdown, 2.5);
}

TEST(ClusterFile, ManifestsStandForAShardingAndItsModel) {
  const auto file = ParseClusterFile(
      "trainers: {manifests: [t0]}\nworkers:\n  manifests: [w0, w1]\n  replicas: 3\n", "a.yaml");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->trainers.manifests, std::vector<std::string>{"t0"});
  EXPECT_EQ(file->workers.manifests, (std::vector<std::string>{"w0", "w1"}));
  EXPECT_EQ(file->workers.replicas, 3u);
  EXPECT_EQ(file->workers.place, "a.yaml:3: key \"workers.manifests\"");
  EXPECT_EQ(file->workers.Describe(), "manifests=2,replicas=3");
}

struct RefusalCase {
  const char* name;
  std::string text;
  const char* error;
};

const RefusalCase kRefusals[] = {
    {"an_unknown_key", std::string(kLeast) + "modle: {}\n",
     "a.yaml:4: key \"modle\" is unknown; accepted: name, digests, images, changed"},
    {"an_unknown_key_within_another", "model:\n  name: m\n  layer: 3\n",
     "a.yaml:3: key \"model.layer\" is unknown; accepted: name, checkpoint, layers"},
    {"a_key_twice", std::string(kLeast) + "name: a\nname: b\n",
     "a.yaml:5: key \"name\" is there twice"},
    {"a_missing_key", "model: {name: m}\ntrainers: {sharding: fsdp=2}\n",
     "key \"workers\" is missing"},
    {"a_missing_sharding", "model: {name: m}\ntrainers: {memory: gpu}\nworkers: {sharding: tp=2}\n",
     "a.yaml:2: key \"trainers\" needs either a sharding or manifests, and not both"},
    {"a_sharding_and_manifests",
     "model: {name: m}\ntrainers: {sharding: fsdp=2}\n"
     "workers: {sharding: tp=2, manifests: [a]}\n",
     "a.yaml:3: key \"workers\" needs either a sharding or manifests, and not both"},
    {"no_manifests", "model: {name: m}\ntrainers: {manifests: []}\nworkers: {sharding: tp=2}\n",
     "a.yaml:2: key \"trainers.manifests\" is \"[]\"; accepted: a list of texts"},
    {"a_manifest_that_is_no_text",
     "model: {name: m}\ntrainers: {sharding: fsdp=2}\nworkers: {manifests: [a, [b]]}\n",
     "a.yaml:3: key \"workers.manifests[1]\" is \"[b]\"; accepted: a text"},
    {"replicas_of_a_sharding",
     "model: {name: m}\ntrainers: {sharding: fsdp=2, replicas: 2}\nworkers: {sharding: tp=2}\n",
     "a.yaml:2: key \"trainers.replicas\" goes with manifests"},
    {"a_format_of_manifests",
     "model: {name: m}\ntrainers: {sharding: fsdp=2}\n"
     "workers:\n  manifests: [a]\n  format: fp8-row\n",
     "a.yaml:5: key \"workers.format\" goes with a sharding"},
    {"too_many_ranks_with_manifests",
     "model: {name: m}\ntrainers: {sharding: fsdp=2}\n"
     "workers: {manifests: [a, b], replicas: 40000}\n",
     "a.yaml:3: key \"workers\" has manifests=2,replicas=40000; accepted: at most 65536 ranks"},
    {"a_model_of_manifests",
     "model: {name: m}\ntrainers: {manifests: [a]}\nworkers: {manifests: [a]}\n",
     "a.yaml:1: key \"model\" goes with a sharding, and both sides have manifests"},
    {"a_sharding_without_a_model", "trainers: {manifests: [a]}\nworkers: {sharding: tp=2}\n",
     "a.yaml:1: key \"model\" is missing"},
    {"two_models",
     "model: {name: m, checkpoint: d}\ntrainers: {sharding: fsdp=2}\n"
     "workers: {sharding: tp=2}\n",
     "a.yaml:1: key \"model\" needs either a name or a checkpoint"},
    {"a_number_that_is_none", std::string(kLeast) + "network: {latency_us: soon}\n",
     "a.yaml:4: key \"network.latency_us\" is \"soon\"; accepted: a number from 0 to 1e+06"},
    {"a_number_out_of_range", std::string(kLeast) + "network:\n  oversubscription: 0.5\n",
     "a.yaml:5: key \"network.oversubscription\" is \"0.5\"; accepted: a number from 1 to 1000"},
    {"a_word_that_is_none",
     "model: {name: m}\ntrainers: {sharding: a, memory: disk}\n"
     "workers: {sharding: tp=2}\n",
     "a.yaml:2: key \"trainers.memory\" is \"disk\"; accepted: gpu or host"},
    {"too_few_nics",
     "model: {name: m}\ntrainers:\n  sharding: fsdp=2\n  nics_per_host: 4\n"
     "workers: {sharding: tp=2}\n",
     "a.yaml:4: key \"trainers.nics_per_host\" is 4 for 8 ranks of a host; accepted: at least 8"},
    {"shared_racks_without_hosts",
     std::string(kLeast) + "network:\n  oversubscription: 2\n  shared_racks: true\n",
     "a.yaml:6: key \"network.shared_racks\" is true for 0 hosts of a rack; accepted: with "
     "\"network.hosts_per_rack\" of at least 1"},
    {"a_straggler_without_a_rank", std::string(kLeast) + "stragglers: [{rank: 3, slowdown: 2}]\n",
     "a.yaml:4: key \"stragglers[0].rank\" is \"3\"; accepted: \"trainer N\" or \"worker N\""},
    {"what_is_not_yaml", "model: {name: m\ntrainers", "a.yaml:2: not YAML:"},
    {"a_list_in_place_of_a_mapping", "[1, 2]", "a.yaml:1: the file is not a mapping"},
    {"an_empty_file", "",
     "a.yaml: the file is not a mapping; accepted keys: name, digests, images, changed"},
    {"a_comma_without_quotes",
     "model: {name: m}\ntrainers: {sharding: fsdp=2}\nworkers: {sharding: tp=4,dp=2}\n",
     "a.yaml:3: key \"workers.dp=2\" is unknown; accepted: sharding, manifests, replicas"},
    {"a_comma_without_quotes_has_a_remedy",
     "model: {name: m}\ntrainers: {sharding: fsdp=2}\nworkers: {sharding: tp=4,dp=2}\n",
     "; within braces, a text with a comma needs quotes: {sharding: 'tp=4,dp=2'}"},
};

class RefusalTest : public testing::TestWithParam<RefusalCase> {};
INSTANTIATE_TEST_SUITE_P(Refusals, RefusalTest, testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

TEST_P(RefusalTest, NamesFileLineAndKey) {
  const auto file = ParseClusterFile(GetParam().text, "a.yaml");
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(GetParam().error));
}

TEST(ClusterFile, TheBuiltInCasesAreTheExamples) {
  for (const char* name : {"kimi-k2-256-128", "qwen3-235b-128-32", "small"}) {
    const auto built_in = FindCase(name);
    ASSERT_TRUE(built_in.ok()) << built_in.status();
    const auto example = ReadClusterFile("examples/clusters/" + std::string(name) + ".yaml");
    ASSERT_TRUE(example.ok()) << example.status();
    EXPECT_EQ(built_in->name, name);
    EXPECT_EQ(built_in->trainers.sharding, example->trainers.sharding);
    EXPECT_EQ(built_in->workers.sharding, example->workers.sharding);
  }
  EXPECT_THAT(std::string(FindCase("none").status().message()),
              HasSubstr("there is no case \"none\"; the cases are kimi-k2-256-128"));
}

TEST(ClusterFile, AFileThatIsNotThereIsNamed) {
  EXPECT_THAT(std::string(ReadClusterFile("/none.yaml").status().message()),
              HasSubstr("cannot read /none.yaml"));
}

TEST(ClusterFile, AnEmptyFileIsReadAndRefused) {
  const std::string path = testing::TempDir() + "empty.yaml";
  std::ofstream(path).close();
  EXPECT_THAT(std::string(ReadClusterFile(path).status().message()),
              HasSubstr(path + ": the file is not a mapping"));
}

}  // namespace
}  // namespace waybill
