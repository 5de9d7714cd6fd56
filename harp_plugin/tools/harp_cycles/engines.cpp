#include "engines.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <latch>
#include <memory>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "bench.hpp"
#include "cores.hpp"
#include "pair.hpp"
#include "shape.hpp"
#include "ticks.hpp"

namespace harp_cycles {
namespace {

constexpr std::size_t kMtuBytes = 1500;
constexpr double kAllowed = 0.1;
constexpr double kLonger = 4;  ///< Than a loop, threads run: they have to start.
/// Bursts for which an engine has the core's caches to itself.
constexpr std::size_t kLongTurn = 256;

using SteadyClock = std::chrono::steady_clock;

const char* verdict(double ratio) {
  return std::abs(ratio - 1) <= kAllowed ? "yes" : "no";
}

/// One engine on a thread of its own, for as long as is measured.
struct Worker {
  double bytes_per_s = 0;
  std::uint64_t checked = 0;
  std::exception_ptr error;

  void run(const Shape& shape, int core, double ms, std::latch& start, std::atomic<bool>& stop) {
    // Made by the thread that uses it, so that nothing of it lies beside another one's.
    std::unique_ptr<Pair> pair;
    Tally tally;
    try {
      stay_on(core);
      pair = std::make_unique<Pair>(shape);
      for (int i = 0; i < 32; ++i) {
        pair->step(tally);  // The window opens.
      }
      tally = {};
    } catch (...) {
      error = std::current_exception();
    }
    start.arrive_and_wait();
    if (error) {
      stop = true;
      return;
    }
    try {
      const auto began = SteadyClock::now();
      const auto end = began + std::chrono::duration<double, std::milli>(ms);
      while (!stop.load(std::memory_order_relaxed) && SteadyClock::now() < end) {
        pair->step(tally);
      }
      const std::chrono::duration<double> elapsed = SteadyClock::now() - began;
      bytes_per_s = static_cast<double>(tally.packets) * shape.pss / elapsed.count();
      checked = pair->checked();
    } catch (...) {
      error = std::current_exception();
      stop = true;
    }
  }
};

/// Bytes per second of engines on `on`, all together.
double run_threads(const Shape& shape,
                   const std::vector<int>& on,
                   double ms,
                   std::uint64_t& checked) {
  std::vector<Worker> workers(on.size());
  std::latch start(static_cast<std::ptrdiff_t>(on.size()));
  std::atomic<bool> stop{false};
  {
    std::vector<std::jthread> threads;
    threads.reserve(on.size());
    for (std::size_t i = 0; i < on.size(); ++i) {
      threads.emplace_back([&, i] { workers[i].run(shape, on[i], ms, start, stop); });
    }
  }
  double sum = 0;
  for (const Worker& worker : workers) {
    if (worker.error) {
      std::rethrow_exception(worker.error);
    }
    sum += worker.bytes_per_s;
    checked += worker.checked;
  }
  return sum;
}

/// Many pairs that take turns, `bursts` at a time.
class Ring final : public Bench {
 public:
  Ring(const Shape& shape, std::size_t count, std::size_t bursts) : bursts_(bursts) {
    for (std::size_t i = 0; i < count; ++i) {
      pairs_.push_back(std::make_unique<Pair>(shape));
    }
  }
  void step(Tally& tally) override {
    for (const auto& pair : pairs_) {
      for (std::size_t burst = 0; burst < bursts_; ++burst) {
        pair->step(tally);
      }
    }
  }
  std::uint64_t checked() const override {
    return std::transform_reduce(
        pairs_.begin(), pairs_.end(), std::uint64_t{0}, std::plus<>(), [](const auto& pair) {
          return pair->checked();
        });
  }

 private:
  std::size_t bursts_;
  std::vector<std::unique_ptr<Pair>> pairs_;
};

}  // namespace

std::uint64_t measure_threads(double ms, std::size_t repetitions) {
  const std::vector<int> all = cores();
  const std::vector<std::pair<const char*, Shape>> shapes = {
      {"hot", hot_shape(kMtuBytes)}, {"cold", cold_shape(kMtuBytes, 4 * l2_bytes())}};
  std::uint64_t checked = 0;
  std::printf(
      "\nEngines on cores of their own, MTU %zu (an engine here sends and receives)\n\n"
      "| engines | buffers | Gb/s of payload, all together | to one engine | per engine | within "
      "10%% |\n|---|---|---|---|---|---|\n",
      kMtuBytes);
  std::vector<std::size_t> counts;
  for (std::size_t count = 1; count < all.size(); count *= 2) {
    counts.push_back(count);
  }
  counts.push_back(all.size());
  for (const auto& [name, shape] : shapes) {
    std::vector<std::vector<double>> rates(counts.size());
    for (std::size_t repetition = 0; repetition < repetitions; ++repetition) {
      for (std::size_t i = 0; i < counts.size(); ++i) {
        // Which cores: by turns, since they need not be alike.
        std::vector<int> on = all;
        std::ranges::rotate(on, on.begin() + static_cast<std::ptrdiff_t>(repetition % on.size()));
        on.resize(counts[i]);
        rates[i].push_back(run_threads(shape, on, kLonger * ms, checked));
      }
    }
    const double one = median(rates.front());
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const double rate = median(rates[i]);
      const double each = rate / one / static_cast<double>(counts[i]);
      std::printf("| %zu | %s | %.1f | %.2f | %.3f | %s |\n",
                  counts[i],
                  name,
                  8e-9 * rate,
                  rate / one,
                  each,
                  verdict(each));
    }
  }
  return checked;
}

std::uint64_t measure_turns(const std::vector<std::size_t>& counts,
                            double ms,
                            std::size_t repetitions,
                            const Clock& clock) {
  const Shape shape = hot_shape(kMtuBytes);
  std::vector<std::unique_ptr<Bench>> benches;
  for (const std::size_t count : counts) {
    benches.push_back(std::make_unique<Ring>(shape, count, 1));
    benches.push_back(std::make_unique<Ring>(shape, count, kLongTurn));
  }
  const auto figures = measure(benches, ms, repetitions, clock);
  std::printf(
      "\nEngines in turns on one core, MTU %zu: cycles per packet, both ends together\n\n"
      "| engines | memory | a burst at a time | to %zu | within 10%% | %zu bursts | to %zu | "
      "within "
      "10%% |\n|---|---|---|---|---|---|---|---|\n",
      kMtuBytes,
      counts.front(),
      kLongTurn,
      counts.front());
  std::uint64_t checked = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    std::printf("| %zu | %.1f MiB |",
                counts[i],
                static_cast<double>(counts[i] * Pair::memory_bytes(shape)) / 1048576);
    for (const std::size_t kind : {std::size_t{0}, std::size_t{1}}) {
      const double cycles = figures[2 * i + kind].median_sum();
      const double ratio = cycles / figures[kind].median_sum();
      std::printf(" %.0f | %.3f | %s |", cycles, ratio, verdict(ratio));
      require(benches[2 * i + kind]->checked() > 0, "nothing");
      checked += benches[2 * i + kind]->checked();
    }
    std::printf("\n");
  }
  return checked;
}

}  // namespace harp_cycles
