// What one small operation costs the engine: allocations, and the time.
//
//   operation_bench [ranks] [operations] [tensors] [KiB]
//
// Ranks are threads of this process. Each submits all-reduces of `KiB` (default 4) by name,
// `tensors` (default 1) in one call, and waits. Prints what one operation costs on one rank once
// its slots exist. The number of allocations does not depend on the machine; the time does. With 1
// rank, the program's instructions can be counted by valgrind --tool=callgrind.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lightcc/engine/world.hpp"

#include "doubles/hash_store.hpp"

namespace {

std::atomic<std::uint64_t> allocations{0};
std::atomic<std::uint64_t> allocated_bytes{0};

void* count_and_allocate(std::size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  allocated_bytes.fetch_add(bytes, std::memory_order_relaxed);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) {
    std::abort();
  }
  return memory;
}

}  // namespace

// Arrays come this way, too: the default array forms call these.
void* operator new(std::size_t bytes) {
  return count_and_allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}

namespace {

using namespace lightcc;

constexpr std::size_t kElementsPerKib = 256;
constexpr std::uint64_t kWarmUp = 1000;

[[noreturn]] void fail(const Status& status) {
  std::fprintf(stderr, "operation_bench: %s\n", status.message().c_str());
  std::_Exit(1);
}

class RankOfBench {
 public:
  RankOfBench(World& world, std::size_t tensors, std::size_t kib)
      : world_(world), data_(tensors, std::vector<float>(kib * kElementsPerKib, 1.0F)) {
    for (std::size_t i = 0; i < tensors; ++i) {
      names_.push_back("allreduce.layer" + std::to_string(i) + ".weight");
    }
  }

  void run(std::uint64_t calls) {
    for (std::uint64_t i = 0; i < calls; ++i) {
      std::vector<Operation> operations(data_.size());
      for (std::size_t t = 0; t < data_.size(); ++t) {
        operations[t].request.signature.op = OpType::kAllreduce;
        operations[t].request.signature.reduce_op = ReduceOp::kMax;
        operations[t].name = names_[t];
        operations[t].input = {.data = data_[t].data(),
                               .shape = {static_cast<std::int64_t>(data_[t].size())}};
        operations[t].output = operations[t].input;
      }
      const auto handle = world_.start(std::move(operations), {.waits = true});
      if (!handle.ok()) {
        fail(handle.status());
      }
      if (const auto ended = world_.wait(*handle, {}); !ended.ok()) {
        fail(ended.status());
      }
    }
  }

 private:
  World& world_;
  std::vector<std::vector<float>> data_;
  std::vector<std::string> names_;
};

struct Costs {
  std::uint64_t allocations = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;
};

WorldPtr join(int rank, int size, const std::shared_ptr<Store>& store) {
  const auto knobs =
      read_knobs([](const std::string&) -> std::optional<std::string> { return std::nullopt; });
  if (!knobs.ok()) {
    fail(knobs.status());
  }
  WorldOptions options;
  options.knobs = *knobs;
  options.epoch.rank = rank;
  options.epoch.size = size;
  options.epoch.store = store;
  options.epoch.key_prefix = "bench";
  options.epoch.secret = "secret";
  options.epoch.rendezvous_address = "127.0.0.1:1";
  auto world = World::create(std::move(options));
  if (!world.ok()) {
    fail(world.status());
  }
  return std::move(*world);
}

// Rank 0 measures; the ranks run in step, so what the others allocate falls in the same time.
Costs measure(int size, std::uint64_t calls, std::size_t tensors, std::size_t kib) {
  const auto store = make_hash_store();
  Costs costs;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const WorldPtr world = join(rank, size, store);
      RankOfBench bench(*world, tensors, kib);
      bench.run(std::min<std::uint64_t>(kWarmUp, calls));
      const auto started = std::chrono::steady_clock::now();
      const std::uint64_t allocations_before = allocations.load();
      const std::uint64_t bytes_before = allocated_bytes.load();
      bench.run(calls);
      if (rank == 0) {
        costs.allocations = allocations.load() - allocations_before;
        costs.bytes = allocated_bytes.load() - bytes_before;
        costs.seconds =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
      }
      bench.run(1);  // The others are not measured while they leave.
      (void)world->shutdown();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return costs;
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const auto calls = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 20'000ULL;
  const auto tensors = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1ULL;
  const auto kib = argc > 4 ? std::strtoull(argv[4], nullptr, 10) : 4ULL;
  if (ranks < 1 || calls < 1 || tensors < 1 || kib < 1) {
    std::fprintf(stderr, "usage: %s [ranks] [operations] [tensors] [KiB]\n", argv[0]);
    return 2;
  }
  const Costs costs = measure(ranks, calls, tensors, kib);
  const double runs = static_cast<double>(calls) * static_cast<double>(tensors) * ranks;
  std::printf(
      "%d ranks, %llu tensors of %llu KiB in a call: %.2f allocations, %.0f bytes, %.2f us\n",
      ranks,
      static_cast<unsigned long long>(tensors),
      static_cast<unsigned long long>(kib),
      static_cast<double>(costs.allocations) / runs,
      static_cast<double>(costs.bytes) / runs,
      1e6 * costs.seconds / (static_cast<double>(calls) * static_cast<double>(tensors)));
  return 0;
}
