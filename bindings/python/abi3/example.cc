// SPDX-License-Identifier: Apache-2.0

// A module that uses everything that abi3 has, for its test.
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/python/abi3/module.h"

namespace {

namespace abi3 = waybill::abi3;

int g_alive = 0;

class Counter {
 public:
  explicit Counter(int64_t start) : total_(start) { ++g_alive; }
  Counter(const Counter&) = delete;
  ~Counter() { --g_alive; }

  void Add(uint8_t count) { total_ += count; }
  int64_t total() const { return total_; }
  abi3::ReadOnlyBytes Bytes() const { return {&total_, sizeof(total_)}; }

 private:
  int64_t total_;
};

struct Token {};

int64_t Sum(const std::vector<std::shared_ptr<Counter>>& counters) {
  int64_t sum = 0;
  for (const auto& counter : counters) sum += counter->total();
  return sum;
}

abi3::Object Describe(bool flag, const std::string& text, const std::optional<int32_t>& number,
                      const std::vector<int64_t>& numbers) {
  abi3::Dict dict;
  dict.Set("flag", flag).Set("text", text).Set("numbers", numbers);
  if (number) dict.Set("number", *number);
  return dict.object();
}

void Throw(const std::string& what) {
  if (what == "value") throw abi3::ValueError("no such value");
  if (what == "memory") throw std::bad_alloc();
  throw std::runtime_error(what);
}

}  // namespace

WAYBILL_ABI3_MODULE(_example, "_example", module) {
  module.Constant("ANSWER", 42);
  module.Function<"alive", [] { return g_alive; }>("Returns how many counters there are.");
  module.Function<"sum", &Sum, "counters">();
  module.Function<"describe", &Describe, "flag", "text", "number", "numbers">();
  module.Function<"echo", [](const abi3::RawBytes& data) { return data; }, "data">();
  module.Function<"quote", [](const abi3::RawBytes& data) { return data.bytes; }, "data">();
  module.Function<"token", [] { return std::make_unique<Token>(); }>();
  module.FunctionUnlocked<"throw", &Throw, "what">();
  abi3::Class<Counter>(module, "Counter")
      .Init<[](int64_t start) { return std::make_unique<Counter>(start); }, "start">()
      .Method<"add", &Counter::Add, "count">()
      .MethodUnlocked<"same", [](const std::shared_ptr<Counter>& self) { return self; }>()
      .StaticMethod<"zero", [] { return std::make_unique<Counter>(0); }>()
      .Property<"total", &Counter::total>()
      .Buffer<&Counter::Bytes>();
  abi3::Class<Token>(module, "Token");
}
