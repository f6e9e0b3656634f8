// SPDX-License-Identifier: Apache-2.0

#include "tools/waybill/described_job/cluster_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "tools/waybill/command_line/relays_names.h"
#include "tools/waybill/described_job/built_in_cases.h"

namespace waybill {
namespace {

using simulate::Machine;
using simulate::MemoryPlace;

// A value in the file, with its key's full name.
struct Value {
  YAML::Node node;
  std::string key;
};

struct Key {
  absl::string_view name;
  std::function<absl::Status(const Value&)> read;
};

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  absl::Status Error(const YAML::Node& node, absl::string_view text) const {
    const YAML::Mark mark = node.Mark();
    return absl::InvalidArgumentError(
        absl::StrCat(path_, mark.is_null() ? "" : absl::StrCat(":", mark.line + 1), ": ", text));
  }

  // Reads a mapping with these keys. Keys that are not there keep their defaults.
  absl::Status ReadMap(const Value& map, const std::vector<Key>& keys,
                       std::initializer_list<absl::string_view> required = {}) const {
    const std::string what = map.key.empty() ? "the file" : absl::StrCat("key \"", map.key, "\"");
    const std::string prefix = map.key.empty() ? "" : absl::StrCat(map.key, ".");
    if (!map.node.IsMap()) {
      return Error(map.node, absl::StrCat(what, " is not a mapping; accepted keys: ", Join(keys)));
    }
    std::map<std::string, YAML::Node> seen;
    for (const auto& entry : map.node) {
      const std::string name = entry.first.IsScalar() ? entry.first.Scalar() : "";
      const auto key = std::find_if(keys.begin(), keys.end(), [&](const Key& k) {
        return k.name == absl::string_view(name);
      });
      if (key == keys.end()) {
        // Within braces, YAML ends a text at a comma.
        const bool is_rest = absl::StrContains(name, '=');
        return Error(entry.first,
                     absl::StrCat("key \"", prefix, name, "\" is unknown; accepted: ", Join(keys),
                                  is_rest ? "; within braces, a text with a comma needs quotes: "
                                            "{sharding: 'tp=4,dp=2'}"
                                          : ""));
      }
      if (!seen.emplace(name, entry.second).second) {
        return Error(entry.first,
                     absl::StrCat("key \"", prefix, name, "\" is there twice; once is accepted"));
      }
    }
    // In the order of the keys: some set what others then change.
    for (const Key& key : keys) {
      const auto found = seen.find(std::string(key.name));
      if (found == seen.end()) continue;
      WAYBILL_RETURN_IF_ERROR(key.read({found->second, absl::StrCat(prefix, key.name)}));
    }
    for (const absl::string_view name : required) {
      if (!seen.contains(std::string(name))) {
        return Error(map.node, absl::StrCat("key \"", prefix, name, "\" is missing"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status Refuse(const Value& value, absl::string_view accepted) const {
    std::ostringstream found;
    found << value.node;
    return Error(value.node, absl::StrCat("key \"", value.key, "\" is \"", found.str(),
                                          "\"; accepted: ", accepted));
  }

  // --- the keys' readers ---

  Key Text(absl::string_view name, std::string* out) const {
    return {name, [this, out](const Value& value) {
              if (!value.node.IsScalar()) return Refuse(value, "a text");
              *out = value.node.Scalar();
              return absl::OkStatus();
            }};
  }
  // A text, and the file, line and key where it is.
  Key PlacedText(absl::string_view name, std::string* out, std::string* place) const {
    return {name, [=, this](const Value& value) {
              *place = PlaceOf(value);
              return Text(name, out).read(value);
            }};
  }
  // A list of texts, and the file, line and key where it is.
  Key PlacedTexts(absl::string_view name, std::vector<std::string>* out, std::string* place) const {
    return {name, [=, this](const Value& value) {
              if (!value.node.IsSequence() || value.node.size() == 0) {
                return Refuse(value, "a list of texts");
              }
              *place = PlaceOf(value);
              for (size_t i = 0; i < value.node.size(); ++i) {
                const Value item = {value.node[i], absl::StrCat(value.key, "[", i, "]")};
                WAYBILL_RETURN_IF_ERROR(Text(name, &out->emplace_back()).read(item));
              }
              return absl::OkStatus();
            }};
  }
  // A number in (0, most], or with `least` in [least, most], times `unit`.
  Key Number(absl::string_view name, double* out, double unit = 1, double most = 1e15,
             std::optional<double> least = std::nullopt) const {
    return {name, [=, this](const Value& value) {
              double number = 0;
              if (!value.node.IsScalar() || !absl::SimpleAtod(value.node.Scalar(), &number) ||
                  !std::isfinite(number) || number > most ||
                  (least ? number < *least : number <= 0)) {
                return Refuse(value, least ? absl::StrCat("a number from ", *least, " to ", most)
                                           : absl::StrCat("a number above 0, at most ", most));
              }
              *out = number * unit;
              return absl::OkStatus();
            }};
  }
  template <typename Integer>
  Key Count(absl::string_view name, Integer* out, uint64_t least, uint64_t most,
            uint64_t unit = 1) const {
    return {name, [=, this](const Value& value) {
              uint64_t number = 0;
              if (!value.node.IsScalar() || !absl::SimpleAtoi(value.node.Scalar(), &number) ||
                  number < least || number > most) {
                return Refuse(value, absl::StrCat("a whole number from ", least, " to ", most));
              }
              *out = static_cast<Integer>(number * unit);
              return absl::OkStatus();
            }};
  }
  Key Flag(absl::string_view name, bool* out) const {
    return {name, [this, out](const Value& value) {
              bool flag = false;
              if (!YAML::convert<bool>::decode(value.node, flag)) {
                return Refuse(value, "true or false");
              }
              *out = flag;
              return absl::OkStatus();
            }};
  }
  template <typename Enum>
  Key Choice(absl::string_view name, std::vector<std::pair<std::string, Enum>> choices,
             std::function<void(Enum)> take) const {
    return {name, [this, choices = std::move(choices), take = std::move(take)](const Value& value) {
              std::vector<std::string> names;
              for (const auto& [word, choice] : choices) {
                names.push_back(word);
                if (!value.node.IsScalar() || value.node.Scalar() != word) continue;
                take(choice);
                return absl::OkStatus();
              }
              return Refuse(value, absl::StrJoin(names, " or "));
            }};
  }
  Key Map(absl::string_view name, std::vector<Key> keys,
          std::initializer_list<absl::string_view> required = {}) const {
    return {name, [this, keys = std::move(keys), required](const Value& value) {
              return ReadMap(value, keys, required);
            }};
  }

 private:
  std::string PlaceOf(const Value& value) const {
    return absl::StrCat(path_, ":", value.node.Mark().line + 1, ": key \"", value.key, "\"");
  }

  static std::string Join(const std::vector<Key>& keys) {
    return absl::StrJoin(keys, ", ",
                         [](std::string* out, const Key& key) { absl::StrAppend(out, key.name); });
  }

  const std::string path_;
};

constexpr uint64_t kMostRanks = 65536;

// The keys that trainers and workers share.
std::vector<Key> SideKeys(const Reader& reader, Side* side, Machine* machine) {
  return {
      reader.PlacedText("sharding", &side->sharding, &side->place),
      reader.PlacedTexts("manifests", &side->manifests, &side->place),
      reader.Count("replicas", &side->replicas, 1, kMostRanks),
      reader.Count("ranks_per_host", &machine->ranks_per_host, 1, 1024),
      reader.Count("nics_per_host", &machine->nics_per_host, 0, 1024),
      reader.Number("nic_gbit_per_second", &machine->nic, 1e9 / 8, 100'000),
      reader.Number("pcie_gb_per_second", &machine->pcie, 1e9),
      reader.Number("nvlink_gb_per_second", &machine->nvlink, 1e9),
      reader.Choice<MemoryPlace>(
          "memory", {{"gpu", MemoryPlace::kGpu}, {"host", MemoryPlace::kHost}},
          [machine](MemoryPlace place) {
            machine->memory = place;
            machine->rates =
                place == MemoryPlace::kGpu ? simulate::kGpuRates : simulate::kHostRates;
          }),
      reader.Flag("nic_reaches_gpu", &machine->nic_reaches_gpu),
      reader.Count("threads", &machine->threads, 1, 1024),
      reader.Count("cores", &machine->cores, 0, 65536),
      // Behind "memory", which sets them all.
      reader.Map("rates_gb_per_second", {reader.Number("copy", &machine->rates.copy, 1e9),
                                         reader.Number("transpose", &machine->rates.transpose, 1e9),
                                         reader.Number("cast", &machine->rates.cast, 1e9),
                                         reader.Number("quantise", &machine->rates.quantise, 1e9),
                                         reader.Number("digest", &machine->rates.digest, 1e9),
                                         reader.Number("compare", &machine->rates.compare, 1e9)}),
  };
}

Key StragglersKey(const Reader& reader, std::vector<simulate::Straggler>* out) {
  return {"stragglers", [&reader, out](const Value& list) {
            if (!list.node.IsSequence()) {
              return reader.Refuse(list, "a list of {rank: trainer 3, slowdown: 2}");
            }
            for (size_t i = 0; i < list.node.size(); ++i) {
              simulate::Straggler straggler;
              const Key rank = {"rank", [&](const Value& value) {
                                  const std::vector<std::string> words = absl::StrSplit(
                                      value.node.IsScalar() ? value.node.Scalar() : "", ' ');
                                  const bool trainer = words[0] == "trainer";
                                  if (words.size() != 2 || !(trainer || words[0] == "worker") ||
                                      !absl::SimpleAtoi(words[1], &straggler.rank.rank)) {
                                    return reader.Refuse(value, "\"trainer N\" or \"worker N\"");
                                  }
                                  straggler.rank.role = trainer ? Role::kTrainer : Role::kWorker;
                                  return absl::OkStatus();
                                }};
              const Value entry = {list.node[i], absl::StrCat(list.key, "[", i, "]")};
              WAYBILL_RETURN_IF_ERROR(reader.ReadMap(
                  entry, {rank, reader.Number("slowdown", &straggler.slowdown, 1, 1e6, 1)},
                  {"rank", "slowdown"}));
              out->push_back(straggler);
            }
            return absl::OkStatus();
          }};
}

absl::Status ReadFile(const Reader& reader, const YAML::Node& root, ClusterFile& file) {
  simulate::Hardware& hardware = file.hardware;
  simulate::Network& network = hardware.network;
  simulate::Control& control = hardware.control;

  std::vector<Key> trainers = SideKeys(reader, &file.trainers, &hardware.trainers);
  trainers.push_back(
      reader.Count("ring_mib", &hardware.trainers.ring_bytes, 1, 1 << 20, uint64_t{1} << 20));
  std::vector<Key> workers = SideKeys(reader, &file.workers, &hardware.workers);
  workers.insert(workers.end(), {reader.PlacedText("format", &file.format, &file.format_place),
                                 reader.PlacedText("dtype", &file.dtype, &file.format_place),
                                 reader.Choice<Mode>("mode",
                                                     {{"shadow", Mode::kShadow},
                                                      {"shadow-copy", Mode::kShadowCopy},
                                                      {"in-place", Mode::kInPlace}},
                                                     [&file](Mode mode) { file.mode = mode; })});
  return reader.ReadMap(
      {root, ""},
      {
          reader.Text("name", &file.name),
          reader.Flag("digests", &file.digests),
          reader.Flag("images", &file.images),
          {"changed",
           [&](const Value& value) {
             double changed = 0;
             WAYBILL_RETURN_IF_ERROR(reader.Number("changed", &changed, 1, 0.5, 0).read(value));
             file.changed = changed;
             return absl::OkStatus();
           }},
          reader.Choice<Relays>("relays", RelaysByName(),
                                [&file](Relays relays) { file.relays = relays; }),
          reader.Map("model", {reader.PlacedText("name", &file.model, &file.model_place),
                               reader.PlacedText("checkpoint", &file.checkpoint, &file.model_place),
                               {"layers",
                                [&](const Value& value) {
                                  int64_t layers = 0;
                                  WAYBILL_RETURN_IF_ERROR(
                                      reader.Count("layers", &layers, 1, kMostRanks).read(value));
                                  file.layers = layers;
                                  return absl::OkStatus();
                                }}}),
          reader.Map("trainers", std::move(trainers)),
          reader.Map("workers", std::move(workers)),
          reader.Map(
              "network",
              {reader.Flag("one_host", &hardware.one_host), reader.Flag("tcp", &hardware.by_tcp),
               reader.Number("efficiency", &network.efficiency, 1, 1),
               reader.Number("latency_us", &network.latency, 1e-6, 1e6, 0),
               reader.Number("message_ns", &network.message, 1e-9, 1e9, 0),
               reader.Number("post_ns", &network.post, 1e-9, 1e9, 0),
               reader.Count("hosts_per_rack", &network.hosts_per_rack, 0, kMostRanks),
               reader.Flag("shared_racks", &network.shared_racks),
               reader.Number("oversubscription", &network.oversubscription, 1, 1000, 1),
               reader.Number("incast_efficiency", &network.incast_efficiency, 1, 1),
               reader.Count("incast_senders", &network.incast_senders, 1, 1'000'000),
               reader.Number("tcp_send_gb_per_second", &network.tcp_send, 1e9),
               reader.Number("tcp_receive_gb_per_second", &network.tcp_receive, 1e9)}),
          reader.Map("control", {reader.Number("message_us", &control.message, 1e-6, 1e6, 0),
                                 reader.Number("handle_us", &control.handle, 1e-6, 1e6, 0),
                                 reader.Number("record_ms", &control.record, 1e-3, 1e5, 0),
                                 reader.Number("prepare_us", &control.prepare, 1e-6, 1e6, 0),
                                 reader.Number("show_us", &control.show, 1e-6, 1e6, 0)}),
          StragglersKey(reader, &hardware.stragglers),
      },
      {"trainers", "workers"});
}

// A side has either a sharding or manifests, and each of the other keys goes with one of them.
absl::Status CheckSides(const Reader& reader, const YAML::Node& root, const ClusterFile& file) {
  for (const auto& [name, side] :
       {std::pair("trainers", &file.trainers), std::pair("workers", &file.workers)}) {
    if (side->sharding.empty() == side->manifests.empty()) {
      return reader.Error(
          root[name],
          absl::StrCat("key \"", name, "\" needs either a sharding or manifests, and not both"));
    }
    const absl::string_view other = side->manifests.empty() ? "manifests" : "a sharding";
    for (const char* key : {"replicas", "format", "dtype"}) {
      const bool of_manifests = absl::string_view(key) == "replicas";
      const YAML::Node given = root[name][key];
      if (given && of_manifests == side->manifests.empty()) {
        return reader.Error(given, absl::StrCat("key \"", name, ".", key, "\" goes with ", other));
      }
    }
    if (side->manifests.size() * side->replicas > kMostRanks) {
      return reader.Error(root[name], absl::StrCat("key \"", name, "\" has ", side->Describe(),
                                                   "; accepted: at most ", kMostRanks, " ranks"));
    }
  }
  const YAML::Node model = root["model"];
  if (file.trainers.sharding.empty() && file.workers.sharding.empty()) {
    if (!model) return absl::OkStatus();
    return reader.Error(model, "key \"model\" goes with a sharding, and both sides have manifests");
  }
  if (!model) return reader.Error(root, "key \"model\" is missing");
  if (file.model.empty() == file.checkpoint.empty()) {
    return reader.Error(model, "key \"model\" needs either a name or a checkpoint, and not both");
  }
  return absl::OkStatus();
}

// Checks what no single key can tell.
absl::Status CheckWhole(const Reader& reader, const YAML::Node& root, const ClusterFile& file) {
  WAYBILL_RETURN_IF_ERROR(CheckSides(reader, root, file));
  for (const auto& [side, machine] : {std::pair("trainers", &file.hardware.trainers),
                                      std::pair("workers", &file.hardware.workers)}) {
    if (machine->nics_per_host == 0 || machine->nics_per_host >= machine->ranks_per_host) continue;
    const YAML::Node given = root[side]["nics_per_host"];
    return reader.Error(
        given ? given : root[side],
        absl::StrCat("key \"", side, ".nics_per_host\" is ", machine->nics_per_host, " for ",
                     machine->ranks_per_host, " ranks of a host; accepted: at least ",
                     machine->ranks_per_host, ", or 0 for TCP"));
  }
  const simulate::Network& network = file.hardware.network;
  if (network.shared_racks && network.hosts_per_rack == 0) {
    return reader.Error(
        root["network"]["shared_racks"],
        "key \"network.shared_racks\" is true for 0 hosts of a rack; accepted: with "
        "\"network.hosts_per_rack\" of at least 1");
  }
  return absl::OkStatus();
}

}  // namespace

std::string Side::Describe() const {
  if (manifests.empty()) return sharding;
  return absl::StrCat("manifests=", manifests.size(), ",replicas=", replicas);
}

absl::StatusOr<ClusterFile> ParseClusterFile(absl::string_view text, const std::string& path) {
  const Reader reader(path);
  ClusterFile file;
  try {
    const YAML::Node root = YAML::Load(std::string(text));
    WAYBILL_RETURN_IF_ERROR(ReadFile(reader, root, file));
    WAYBILL_RETURN_IF_ERROR(CheckWhole(reader, root, file));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ":", error.mark.line + 1, ": not YAML: ", error.msg));
  }
  if (file.name.empty()) file.name = path;
  return file;
}

absl::StatusOr<ClusterFile> ReadClusterFile(const std::string& path) {
  std::ifstream stream(path);
  const std::string text(std::istreambuf_iterator<char>(stream), {});
  if (!stream) {
    return absl::NotFoundError(
        absl::StrCat("read the description of a cluster: cannot read ", path));
  }
  return ParseClusterFile(text, path);
}

absl::StatusOr<ClusterFile> FindCase(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const BuiltInCase& one : kBuiltInCases) {
    if (name == one.name) return ParseClusterFile(one.yaml, absl::StrCat(one.name, ".yaml"));
    names.push_back(one.name);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no case \"", name, "\"; the cases are ", absl::StrJoin(names, ", ")));
}

}  // namespace waybill
