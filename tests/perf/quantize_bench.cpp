// How near the passes of int8, fp8, int4 and 1-bit compression come to the memory's limit, on one
// core: against memcpy of the same run. The quantising pass reads a float32 gradient and its
// residual and writes the next residual and the codes; the decoding pass reads two parts and writes
// float32. Every result is checked. Prints a table; asserts no time.
//
// Arguments: numbers of elements in Mi (default: 1 16). Each figure is the best of a number of
// rounds, the contenders in turns.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "lightcc/base/rng.hpp"
#include "lightcc/collectives/kernels/reduce.hpp"
#include "lightcc/compression/quantize.hpp"

namespace {

using lightcc::SimdLevel;
using Clock = std::chrono::steady_clock;

constexpr int kRounds = 41;

double seconds_of(const auto& action) {
  const auto begin = Clock::now();
  action();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Best {
  double seconds = 1e9;
  void take(double measured) { seconds = std::min(seconds, measured); }
};

std::span<const std::byte> bytes_of(const std::vector<float>& values) {
  return std::as_bytes(std::span(values));
}

std::byte* writable(std::vector<float>& values) {
  return std::as_writable_bytes(std::span(values)).data();
}

struct Contender {
  lightcc::Compressor compressor = lightcc::Compressor::kInt8;
  SimdLevel level = SimdLevel::kPlain;
  Best encode{};
  Best decode{};
};

/// Sent and left together are what was put in: in every bit, or to a rounding where there is 1 bit.
bool is_right(lightcc::Compressor compressor,
              const std::vector<float>& gradient,
              const std::vector<float>& residual,
              const std::vector<float>& next,
              const std::vector<float>& twice) {
  const bool is_sign = compressor == lightcc::Compressor::kSign;
  bool right = true;
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const float sent = twice[i] / 2.0F;
    const float slack = is_sign ? std::abs(sent) * std::numeric_limits<float>::epsilon() : 0.0F;
    right = right && std::abs(sent + next[i] - (gradient[i] + residual[i])) <= slack;
  }
  return right;
}

bool measure(std::size_t numel) {
  std::vector<float> gradient(numel);
  std::vector<float> residual(numel);
  lightcc::Rng rng(1);
  for (std::size_t i = 0; i < numel; ++i) {
    gradient[i] = static_cast<float>(rng.unit() + rng.unit() + rng.unit() - 1.5);
    residual[i] = static_cast<float>((rng.unit() - 0.5) * 0.01);
  }
  std::vector<float> next(numel);
  std::vector<float> out(numel);
  std::vector<Contender> contenders;
  for (const lightcc::Compressor compressor : {lightcc::Compressor::kInt8,
                                               lightcc::Compressor::kFp8,
                                               lightcc::Compressor::kInt4,
                                               lightcc::Compressor::kSign}) {
    for (const SimdLevel level : {SimdLevel::kPlain, SimdLevel::kAvx2, SimdLevel::kAvx512}) {
      if (level <= lightcc::detect_simd_level()) {
        contenders.push_back({.compressor = compressor, .level = level});
      }
    }
  }
  Best copied;
  bool right = true;
  std::vector<std::byte> part(lightcc::quantized_bytes(numel, 8));
  for (int round = 0; round < kRounds; ++round) {
    copied.take(
        seconds_of([&] { std::memcpy(writable(out), gradient.data(), numel * sizeof(float)); }));
    for (Contender& it : contenders) {
      const lightcc::QuantizedFormat format{.compressor = it.compressor};
      const auto codes =
          std::span(part).first(lightcc::quantized_bytes(numel, lightcc::bits_of(it.compressor)));
      bool finite = false;
      it.encode.take(seconds_of([&] {
        finite = lightcc::quantize(bytes_of(gradient).data(),
                                   bytes_of(residual).data(),
                                   writable(next),
                                   numel,
                                   format,
                                   codes,
                                   it.level);
      }));
      const std::array<std::span<const std::byte>, 2> parts{codes, codes};
      it.decode.take(seconds_of(
          [&] { lightcc::dequantize(parts, numel, format, 1.0, writable(out), it.level); }));
      right =
          right && finite && (round > 0 || is_right(it.compressor, gradient, residual, next, out));
    }
  }
  const double memcpy_rate = 8.0 * static_cast<double>(numel) / copied.seconds;
  std::printf("%zu Mi elements of float32; memcpy %.1f GB/s\n", numel >> 20, memcpy_rate * 1e-9);
  for (const Contender& it : contenders) {
    const double code =
        static_cast<double>(lightcc::quantized_bytes(numel, lightcc::bits_of(it.compressor))) /
        static_cast<double>(numel);
    const auto rate = [&](const Best& best, double bytes) {
      return bytes * static_cast<double>(numel) / best.seconds;
    };
    const double encoding = rate(it.encode, 12.0 + code);
    const double decoding = rate(it.decode, 4.0 + 2.0 * code);
    std::printf(
        "  %-5s %-7s quantise %7.2f ms %5.1f GB/s (%3.0f%%)   decode two %7.2f ms %5.1f GB/s "
        "(%3.0f%%)\n",
        lightcc::compressor_name(it.compressor),
        lightcc::simd_level_name(it.level),
        it.encode.seconds * 1e3,
        encoding * 1e-9,
        100.0 * encoding / memcpy_rate,
        it.decode.seconds * 1e3,
        decoding * 1e-9,
        100.0 * decoding / memcpy_rate);
  }
  return right;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::size_t> sizes;
  for (int i = 1; i < argc; ++i) {
    sizes.push_back(std::max<std::size_t>(std::strtoul(argv[i], nullptr, 10), 1) << 20);
  }
  if (sizes.empty()) {
    sizes = {std::size_t{1} << 20, std::size_t{16} << 20};
  }
  bool right = true;
  for (const std::size_t numel : sizes) {
    right = measure(numel) && right;
  }
  std::puts(right ? "all results are right" : "WRONG");
  return right ? 0 : 1;
}
