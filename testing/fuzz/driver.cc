// SPDX-License-Identifier: Apache-2.0

// Runs a fuzz target as an ordinary test: every input of the corpus, every seed, and mutations of
// both. Input number N of a seed is always the same.
//
// usage: TARGET [--runs=N] [--seconds=S] [--seed=N] [--only=N] [--write_seeds=DIRECTORY] [FILE...]
//
//   --runs     So many mutated inputs, 20000 by default; no limit if --seconds is given.
//   --seconds  No new input is begun after so many seconds, 8 by default. What was not reached is
//              not an error.
//   --seed     Of the mutations, 1 by default.
//   --only     Runs this mutated input alone, and prints it first.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "testing/fuzz/fuzz_target.h"

extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace waybill::fuzz {
namespace {

using Random = std::mt19937_64;

constexpr size_t kMostBytes = 1 << 16;

struct Options {
  uint64_t runs = 20'000;
  uint64_t seconds = 8;
  uint64_t seed = 1;
  uint64_t only = 0;
  std::string write_seeds;
  std::vector<std::string> files;
};

// The current input, for the message at a crash.
char running[512];

void TellWhatRan() { (void)!write(STDERR_FILENO, running, std::strlen(running)); }

void OnSignal(int number) {
  TellWhatRan();
  signal(number, SIG_DFL);
  raise(number);
}

size_t Below(Random& random, size_t limit) { return limit == 0 ? 0 : random() % limit; }

// Numbers on the edge of something, in one to eight bytes.
void PutNumber(Random& random, std::string& input) {
  static constexpr uint64_t kNumbers[] = {
      0,          1,          2,          7,          8,           16,         255,
      256,        4096,       0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,  1ull << 31, 1ull << 32,
      1ull << 62, ~0ull >> 1, 1ull << 63, ~0ull,      ~0ull - 255, 1ull << 40};
  const uint64_t number = kNumbers[Below(random, std::size(kNumbers))];
  const size_t width = size_t{1} << Below(random, 4);
  if (input.size() < width) return;
  std::memcpy(input.data() + Below(random, input.size() - width + 1), &number, width);
}

void MutateOnce(Random& random, const std::vector<std::string>& pool, std::string& input) {
  const size_t at = Below(random, input.size() + 1);
  const size_t length = Below(random, std::min<size_t>(input.size() - at, 64) + 1);
  switch (Below(random, 8)) {
    case 0:
      if (!input.empty()) input[Below(random, input.size())] ^= char(1 << Below(random, 8));
      return;
    case 1:
      if (!input.empty()) input[Below(random, input.size())] = static_cast<char>(random());
      return;
    case 2:
    case 3:
      return PutNumber(random, input);
    case 4:
      input.erase(at, length);
      return;
    case 5:  // Again, and perhaps many times.
      for (size_t i = Below(random, 4) == 0 ? Below(random, 1000) : 1; i > 0; --i) {
        if (input.size() + length > kMostBytes) return;
        input.insert(at, input.substr(at, length));
      }
      return;
    case 6: {  // A piece of another one.
      const std::string& other = pool[Below(random, pool.size())];
      const size_t from = Below(random, other.size() + 1);
      input.insert(at, other.substr(from, Below(random, 128)));
      return;
    }
    default:
      if (Below(random, 4) == 0) input.resize(at);
      return;
  }
}

std::string MakeInput(const std::vector<std::string>& pool, uint64_t seed, uint64_t number) {
  Random random(seed * 0x9E3779B97F4A7C15 + number);
  std::string input = pool[Below(random, pool.size())];
  for (size_t i = 1 + Below(random, 6); i > 0; --i) MutateOnce(random, pool, input);
  return input;
}

void Run(const std::string& input) {
  // On the heap and no longer than it is, so that a sanitizer sees a read behind its end.
  const std::vector<uint8_t> bytes(input.begin(), input.end());
  (void)LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

bool Parse(int argc, char** argv, Options& options) {
  bool runs_given = false, seconds_given = false;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : argument.substr(equals + 1);
    const uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
    if (name == "--runs") {
      options.runs = number, runs_given = true;
    } else if (name == "--seconds") {
      options.seconds = number, seconds_given = true;
    } else if (name == "--seed") {
      options.seed = number;
    } else if (name == "--only") {
      options.only = number;
    } else if (name == "--write_seeds") {
      options.write_seeds = value;
    } else if (name.rfind("--", 0) == 0) {
      return false;
    } else {
      options.files.push_back(argument);
    }
  }
  if (seconds_given && !runs_given) options.runs = ~uint64_t{0};
  return true;
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "read %s: it is not there\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

int Main(int argc, char** argv) {
  Options options;
  if (!Parse(argc, argv, options)) {
    std::fprintf(stderr, "driver.cc says which arguments there are\n");
    return 2;
  }
  std::vector<std::string> pool = Seeds();
  if (!options.write_seeds.empty()) {
    for (size_t i = 0; i < pool.size(); ++i) {
      const std::string path = options.write_seeds + "/seed-" + std::to_string(i);
      std::ofstream(path, std::ios::binary) << pool[i];
    }
    return 0;
  }
  for (const int number : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) signal(number, OnSignal);
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(TellWhatRan);

  for (const std::string& file : options.files) {
    std::snprintf(running, sizeof(running), "input: %s\n", file.c_str());
    pool.push_back(ReadFile(file));
    Run(pool.back());
  }
  for (size_t i = 0; i + options.files.size() < pool.size(); ++i) {
    std::snprintf(running, sizeof(running), "input: Seeds()[%zu]\n", i);
    Run(pool[i]);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(options.seconds);
  uint64_t done = 0;
  for (uint64_t n = options.only != 0 ? options.only : 1; n <= options.runs; ++n) {
    if (std::chrono::steady_clock::now() >= end) break;
    std::snprintf(running, sizeof(running), "input: --seed=%llu --only=%llu\n",
                  static_cast<unsigned long long>(options.seed),
                  static_cast<unsigned long long>(n));
    const std::string input = MakeInput(pool, options.seed, n);
    if (options.only != 0) {
      for (const char c : input) std::printf("%02x", static_cast<unsigned char>(c));
      std::printf("\n");
      std::fflush(stdout);
    }
    Run(input);
    ++done;
    if (options.only != 0) break;
  }
  std::printf("%zu inputs of the corpus, %zu seeds, %llu mutated inputs\n", options.files.size(),
              pool.size() - options.files.size(), static_cast<unsigned long long>(done));
  return 0;
}

}  // namespace
}  // namespace waybill::fuzz

int main(int argc, char** argv) { return waybill::fuzz::Main(argc, argv); }
