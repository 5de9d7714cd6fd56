// How near the three passes of low-rank compression come to the memory's limit, on one core:
// against memcpy of the same run. Each reads a float32 gradient and its residual; the last one
// writes the next residual and the result. Results are checked. Prints a table; asserts no time.
//
// Arguments: rows and columns (default: 1024 1024, then 4096 4096). Each figure is the best of a
// number of rounds, the contenders in turns.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "lightcc/base/rng.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/low_rank_state.hpp"

namespace {

using lightcc::LowRankState;
using lightcc::MatrixShape;
using lightcc::SimdLevel;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 11;

double seconds_of(const auto& action) {
  const auto begin = Clock::now();
  action();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Best {
  double seconds = 1e9;
  void take(double measured) { seconds = std::min(seconds, measured); }
};

std::byte* writable(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values)).data();
}

struct Contender {
  LowRankState state;
  SimdLevel level;
  Best project{};
  Best orthonormalise{};
  Best collect{};
  Best finish{};
};

/// What was sent and what is kept back is what was there.
bool is_right(const LowRankState& state,
              const std::vector<float>& gradient,
              const std::vector<double>& before,
              const std::vector<float>& out) {
  bool right = true;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double had = gradient[i] + before[i];
    right = right && std::abs(out[i] + state.residual_at(i) - had) < 1e-4;
  }
  return right;
}

bool measure(const MatrixShape& matrix) {
  const std::size_t numel = matrix.rows * matrix.cols;
  std::vector<float> gradient(numel);
  lightcc::Rng rng(1);
  for (float& value : gradient) {
    value = static_cast<float>(rng.unit() + rng.unit() + rng.unit() - 1.5);
  }
  std::vector<float> out(numel);
  std::vector<Contender> contenders;
  for (const std::size_t rank : {1U, 4U, 16U}) {
    for (const SimdLevel level : {SimdLevel::kPlain, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
      if (level <= lightcc::detect_simd_level()) {
        contenders.push_back(
            {LowRankState(lightcc::DataType::kFloat32, matrix, rank, level), level});
      }
    }
  }
  Best copied;
  bool right = true;
  for (int round = 0; round < kRounds; ++round) {
    copied.take(
        seconds_of([&] { std::memcpy(writable(out), gradient.data(), numel * sizeof(float)); }));
    for (Contender& it : contenders) {
      std::vector<double> before;
      for (std::size_t i = 0; round == 0 && i < numel; ++i) {
        before.push_back(it.state.residual_at(i));
      }
      std::vector<float> left(it.state.left_elems());
      std::vector<float> shares(it.state.right_elems());
      const std::byte* const in = std::as_bytes(std::span(gradient)).data();
      bool good = true;
      it.project.take(
          seconds_of([&] { good = it.state.project(in, 1.0, writable(left)).ok() && good; }));
      it.orthonormalise.take(
          seconds_of([&] { good = it.state.orthonormalise(writable(left)) && good; }));
      it.collect.take(seconds_of(
          [&] { good = it.state.collect(writable(left), writable(shares)).ok() && good; }));
      it.finish.take(seconds_of([&] {
        const auto done = it.state.finish(writable(left), writable(shares), 1.0, writable(out));
        good = done.ok() && *done && good;
      }));
      right = right && good && (round > 0 || is_right(it.state, gradient, before, out));
    }
  }
  const double memcpy_rate = 8.0 * static_cast<double>(numel) / copied.seconds;
  std::printf("%zu x %zu elements of float32; memcpy %.1f GB/s\n",
              matrix.rows,
              matrix.cols,
              memcpy_rate * 1e-9);
  for (const Contender& it : contenders) {
    const auto rate = [&](const Best& best, double bytes) {
      return bytes * static_cast<double>(numel) / best.seconds * 1e-9;
    };
    std::printf(
        "  rank %2zu %-7s  P %7.2f ms %5.1f GB/s   basis %6.2f ms   R %7.2f ms %5.1f GB/s   "
        "result %7.2f ms %5.1f GB/s\n",
        it.state.rank(),
        lightcc::simd_level_name(it.level),
        it.project.seconds * 1e3,
        rate(it.project, 8.0),
        it.orthonormalise.seconds * 1e3,
        it.collect.seconds * 1e3,
        rate(it.collect, 8.0),
        it.finish.seconds * 1e3,
        rate(it.finish, 16.0));
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<MatrixShape> matrices;
  for (int i = 1; i + 1 < argc; i += 2) {
    matrices.push_back({std::max<std::size_t>(std::strtoul(argv[i], nullptr, 10), 1),
                        std::max<std::size_t>(std::strtoul(argv[i + 1], nullptr, 10), 1)});
  }
  if (matrices.empty()) {
    matrices = {{1024, 1024}, {4096, 4096}};
  }
  bool right = true;
  for (const MatrixShape& matrix : matrices) {
    right = measure(matrix) && right;
  }
  std::puts(right ? "all results are right" : "WRONG");
  return right ? 0 : 1;
}
