#include "lightcc/compression/quantized/quantize.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>

#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/kernels/float_types.hpp"
#include "lightcc/compression/kernels/quantize_blocks.hpp"

namespace lightcc {
namespace {

using detail::load_as;
using detail::store_as;

constexpr std::size_t kBlock = kQuantizedBlockElems;
constexpr std::size_t kScaleBytes = sizeof(std::uint16_t);
constexpr std::uint16_t kSign = 0x8000;
/// Blocks at a time: their lanes stay in the L1 cache.
constexpr std::size_t kChunkBlocks = 16;
constexpr std::size_t kChunk = kChunkBlocks * kBlock;

std::size_t blocks_of(std::size_t elements) {
  return elements / kBlock + (elements % kBlock != 0 ? 1 : 0);
}

/// The exponent of a scale, all ones.
std::uint16_t special_scale(DataType dtype) {
  return dtype == DataType::kFloat64 ? 0x7ff0 : 0x7f80;
}

constexpr std::uint16_t kVoidScale = 0x7fff;  // A NaN of either kind of lane.

std::size_t code_bytes(std::size_t elements, unsigned bits) {
  const std::size_t whole = kBlock / 8 * bits;
  return elements / kBlock * whole + std::min(elements % kBlock, whole);
}

/// Lanes of a chunk, aligned for any vector.
template <typename Lane>
struct alignas(64) Chunk {
  std::array<Lane, kChunk> lanes;
  std::byte* bytes() { return std::as_writable_bytes(std::span(lanes)).data(); }
};

/// Some blocks of a part, of which the last one may be short.
struct ChunkRange {
  std::size_t first;  // Block.
  std::size_t elements;
  std::size_t blocks() const { return blocks_of(elements); }
};

template <typename Function>
void for_each_chunk(std::size_t elements, const Function& function) {
  for (std::size_t first = 0; first < elements; first += kChunk) {
    function(ChunkRange{.first = first / kBlock, .elements = std::min(kChunk, elements - first)});
  }
}

/// One direction of the codes of a part. A chunk's last block may be short: then it passes through
/// codes of a whole one.
class Codes {
 public:
  Codes(std::size_t elements, unsigned bits) : bits_(bits), blocks_(blocks_of(elements)) {}

  std::size_t scales_at(const ChunkRange& chunk) const { return chunk.first * kScaleBytes; }
  std::size_t codes_at(const ChunkRange& chunk) const {
    return blocks_ * kScaleBytes + code_bytes(chunk.first * kBlock, bits_);
  }
  std::size_t bytes_of(const ChunkRange& chunk) const { return code_bytes(chunk.elements, bits_); }

 private:
  unsigned bits_;
  std::size_t blocks_;
};

using WholeCodes = std::array<std::byte, kChunk>;

template <typename Type>
class Quantizer {
 public:
  using Lane = Type::Lane;

  // Its buffers are written before they are read.
  // NOLINTNEXTLINE(cppcoreguidelines-pro-type-member-init)
  Quantizer(const QuantizedFormat& format, SimdLevel level)
      : bits_(format.bits()),
        quantize_(quantize_kernel(level)),
        dequantize_(dequantize_kernel(level)) {}

  // Out of line: compilers do not order arithmetic against the float mode.
  [[gnu::noinline]] bool quantize(const std::byte* input,
                                  const std::byte* residual,
                                  std::byte* next,
                                  std::size_t elements,
                                  std::byte* out) {
    const Codes codes(elements, bits_);
    bool finite = true;
    for_each_chunk(elements, [&](const ChunkRange& chunk) {
      const std::size_t at = chunk.first * kBlock;
      const bool whole = chunk.elements % kBlock == 0;
      const std::byte* lanes = nullptr;
      if (input != nullptr && !Type::kRounds && whole) {
        lanes = input + at * sizeof(Lane);
      } else {
        load(input == nullptr ? nullptr : input + at * sizeof(typename Type::Wire), chunk);
        lanes = input_.bytes();
      }
      finite = run(codes, chunk, lanes, residual, next, out) && finite;
    });
    return finite;
  }

  [[gnu::noinline]] bool quantize_sum(std::span<const std::span<const std::byte>> parts,
                                      std::size_t elements,
                                      std::byte* own,
                                      std::byte* out) {
    const Codes codes(elements, bits_);
    bool finite = true;
    for_each_chunk(elements, [&](const ChunkRange& chunk) {
      sum(codes, parts, chunk, /*add=*/false);
      finite = run(codes, chunk, input_.bytes(), own, own, out) && finite;
    });
    return finite;
  }

  [[gnu::noinline]] static void accumulate(const std::byte* input,
                                           const std::byte* residual,
                                           std::byte* next,
                                           std::size_t elements) {
    using Wire = Type::Wire;
    for (std::size_t i = 0; i < elements; ++i) {
      const Lane x =
          input == nullptr ? Lane{0} : Type::decode(load_as<Wire>(input + i * sizeof(Wire)));
      store_as(next + i * sizeof(Lane), x + load_as<Lane>(residual + i * sizeof(Lane)));
    }
  }

  /// `own`: elements that come before the parts; null: zeros; none: the parts are all.
  [[gnu::noinline]] void dequantize(std::optional<const std::byte*> own,
                                    std::span<const std::span<const std::byte>> parts,
                                    std::size_t elements,
                                    double factor,
                                    std::byte* out) {
    const Codes codes(elements, bits_);
    for_each_chunk(elements, [&](const ChunkRange& chunk) {
      if (own.has_value()) {
        const std::size_t at = chunk.first * kBlock * sizeof(typename Type::Wire);
        load(*own == nullptr ? nullptr : *own + at, chunk);
      }
      sum(codes, parts, chunk, /*add=*/own.has_value());
      store(chunk, factor, out);
    });
  }

  [[gnu::noinline]] static void add_exact(const std::byte* own,
                                          std::span<const std::span<const std::byte>> parts,
                                          std::size_t elements,
                                          double factor,
                                          std::byte* out) {
    using Wire = Type::Wire;
    for (std::size_t i = 0; i < elements; ++i) {
      Lane sum = own == nullptr ? Lane{0} : Type::decode(load_as<Wire>(own + i * sizeof(Wire)));
      for (const std::span<const std::byte> part : parts) {
        sum += Type::decode(load_as<Wire>(part.data() + i * sizeof(Wire)));
      }
      store_as(out + i * sizeof(Wire), Type::encode(sum * static_cast<Lane>(factor)));
    }
  }

 private:
  /// Elements as lanes, and zeros up to the end of the last block.
  void load(const std::byte* from, const ChunkRange& chunk) {
    using Wire = Type::Wire;
    std::size_t i = 0;
    for (; from != nullptr && i < chunk.elements; ++i) {
      input_.lanes[i] = Type::decode(load_as<Wire>(from + i * sizeof(Wire)));
    }
    std::fill(input_.lanes.begin() + static_cast<std::ptrdiff_t>(i),
              input_.lanes.begin() + static_cast<std::ptrdiff_t>(chunk.blocks() * kBlock),
              Lane{0});
  }

  /// input_ times the factor, to where the chunk is in `out`.
  void store(const ChunkRange& chunk, double factor, std::byte* out) {
    using Wire = Type::Wire;
    const auto by = static_cast<Lane>(factor);
    std::byte* to = out + chunk.first * kBlock * sizeof(Wire);
    for (std::size_t i = 0; i < chunk.elements; ++i) {
      const Lane product = input_.lanes[i] * by;
      const Lane one = std::isnan(product) ? detail::one_nan<Lane>() : product;
      store_as(to + i * sizeof(Wire), Type::encode(one));
    }
  }

  /// The lanes of a chunk, of whole blocks, to their scales and codes. `residual` and `next`, which
  /// may be the same, have the part's elements and no more; null: there is no residual.
  bool run(const Codes& codes,
           const ChunkRange& chunk,
           const std::byte* lanes,
           const std::byte* residual,
           std::byte* next,
           std::byte* out) {
    if (residual == nullptr) {
      left_.lanes.fill(Lane{0});
      return quantize_chunk(codes, chunk, lanes, left_.bytes(), left_.bytes(), out);
    }
    const std::byte* kept = residual + chunk.first * kBlock * sizeof(Lane);
    std::byte* left = next + chunk.first * kBlock * sizeof(Lane);
    if (chunk.elements % kBlock == 0) {
      return quantize_chunk(codes, chunk, lanes, kept, left, out);
    }
    left_.lanes.fill(Lane{0});
    std::memcpy(left_.bytes(), kept, chunk.elements * sizeof(Lane));
    const bool finite = quantize_chunk(codes, chunk, lanes, left_.bytes(), left_.bytes(), out);
    std::memcpy(left, left_.bytes(), chunk.elements * sizeof(Lane));
    return finite;
  }

  bool quantize_chunk(const Codes& codes,
                      const ChunkRange& chunk,
                      const std::byte* lanes,
                      const std::byte* kept,
                      std::byte* left,
                      std::byte* out) {
    const bool whole = chunk.elements % kBlock == 0;
    std::byte* to = out + codes.codes_at(chunk);
    const bool finite = quantize_({.input = lanes,
                                   .residual = kept,
                                   .next = left,
                                   .scales = out + codes.scales_at(chunk),
                                   .codes = whole ? to : whole_.data(),
                                   .blocks = chunk.blocks(),
                                   .wide = sizeof(Lane) == sizeof(double),
                                   .bits = bits_});
    if (!whole && finite) {
      std::memcpy(to, whole_.data(), codes.bytes_of(chunk));
    }
    return finite;
  }

  /// The sum of a chunk of all parts, to input_, and zeros up to the end of the last block. `add`:
  /// what input_ has comes first.
  void sum(const Codes& codes,
           std::span<const std::span<const std::byte>> parts,
           const ChunkRange& chunk,
           bool add) {
    const bool whole = chunk.elements % kBlock == 0;
    for (const std::span<const std::byte> part : parts) {
      const std::byte* from = part.data() + codes.codes_at(chunk);
      if (!whole) {
        const std::size_t bytes = codes.bytes_of(chunk);
        std::memcpy(whole_.data(), from, bytes);
        std::fill(whole_.begin() + static_cast<std::ptrdiff_t>(bytes), whole_.end(), std::byte{0});
        from = whole_.data();
      }
      dequantize_({.scales = part.data() + codes.scales_at(chunk),
                   .codes = from,
                   .lanes = input_.bytes(),
                   .blocks = chunk.blocks(),
                   .wide = sizeof(Lane) == sizeof(double),
                   .bits = bits_,
                   .add = add});
      add = true;
    }
    std::fill(input_.lanes.begin() + static_cast<std::ptrdiff_t>(chunk.elements),
              input_.lanes.begin() + static_cast<std::ptrdiff_t>(chunk.blocks() * kBlock),
              Lane{0});
  }

  unsigned bits_;
  QuantizeKernel quantize_;
  DequantizeKernel dequantize_;
  Chunk<Lane> input_;
  Chunk<Lane> left_;
  WholeCodes whole_;
};

}  // namespace

std::size_t quantized_bytes(std::size_t elements, unsigned bits) {
  return blocks_of(elements) * kScaleBytes + code_bytes(elements, bits);
}

ShardRange quantized_part(std::size_t numel, std::size_t n, std::size_t j) {
  const std::size_t blocks = blocks_of(numel);
  const auto boundary = [&](std::size_t part) {
    const std::size_t before = part * (blocks / n) + std::min(part, blocks % n);
    return std::min(before * kBlock, numel);
  };
  return {boundary(j), boundary(j + 1)};
}

bool quantize(const std::byte* input,
              const std::byte* residual,
              std::byte* next,
              std::size_t elements,
              const QuantizedFormat& format,
              std::span<std::byte> out,
              SimdLevel level) {
  const IeeeFloatMode mode;
  const bool finite = detail::with_float_type(format.dtype, [&](auto type) {
    return Quantizer<decltype(type)>(format, level)
        .quantize(input, residual, next, elements, out.data());
  });
  if (!finite) {
    write_non_finite(elements, format.bits(), out);
  }
  return finite;
}

Result<bool> check_quantized(std::span<const std::byte> part,
                             std::size_t elements,
                             const QuantizedFormat& format) {
  const std::size_t expected = quantized_bytes(elements, format.bits());
  if (part.size() != expected) {
    return make_error(ErrorCode::kPeerFailed,
                      "a rank sent %zu bytes of quantised elements, where %zu are expected",
                      part.size(),
                      expected);
  }
  const std::uint16_t special = special_scale(format.dtype);
  bool non_finite = false;
  for (std::size_t block = 0; block < blocks_of(elements); ++block) {
    const auto scale = load_as<std::uint16_t>(part.data() + block * kScaleBytes);
    if ((scale & kSign) != 0) {
      return make_error(ErrorCode::kPeerFailed,
                        "a rank sent quantised elements whose scale is below zero");
    }
    non_finite = non_finite || (scale & special) == special;
  }
  return non_finite;
}

void dequantize(std::span<const std::span<const std::byte>> parts,
                std::size_t elements,
                const QuantizedFormat& format,
                double factor,
                std::byte* out,
                SimdLevel level) {
  const IeeeFloatMode mode;
  detail::with_float_type(format.dtype, [&](auto type) {
    Quantizer<decltype(type)>(format, level).dequantize({}, parts, elements, factor, out);
  });
}

void dequantize_onto(const std::byte* own,
                     std::span<const std::span<const std::byte>> parts,
                     std::size_t elements,
                     const QuantizedFormat& format,
                     double factor,
                     std::byte* out,
                     SimdLevel level) {
  const IeeeFloatMode mode;
  detail::with_float_type(format.dtype, [&](auto type) {
    Quantizer<decltype(type)>(format, level).dequantize(own, parts, elements, factor, out);
  });
}

void add_exact(const std::byte* own,
               std::span<const std::span<const std::byte>> parts,
               std::size_t elements,
               DataType dtype,
               double factor,
               std::byte* out) {
  const IeeeFloatMode mode;
  detail::with_float_type(dtype, [&](auto type) {
    Quantizer<decltype(type)>::add_exact(own, parts, elements, factor, out);
  });
}

void accumulate(const std::byte* input,
                const std::byte* residual,
                std::byte* next,
                std::size_t elements,
                DataType dtype) {
  const IeeeFloatMode mode;
  detail::with_float_type(dtype, [&](auto type) {
    Quantizer<decltype(type)>::accumulate(input, residual, next, elements);
  });
}

bool quantize_sum(std::span<const std::span<const std::byte>> parts,
                  std::size_t elements,
                  const QuantizedFormat& format,
                  std::byte* own,
                  std::span<std::byte> out,
                  SimdLevel level) {
  const IeeeFloatMode mode;
  const bool finite = detail::with_float_type(format.dtype, [&](auto type) {
    return Quantizer<decltype(type)>(format, level).quantize_sum(parts, elements, own, out.data());
  });
  if (!finite) {
    write_non_finite(elements, format.bits(), out);
  }
  return finite;
}

void write_non_finite(std::size_t elements, unsigned bits, std::span<std::byte> out) {
  const std::size_t blocks = blocks_of(elements);
  for (std::size_t block = 0; block < blocks; ++block) {
    store_as(out.data() + block * kScaleBytes, kVoidScale);
  }
  const auto codes = out.subspan(blocks * kScaleBytes, code_bytes(elements, bits));
  std::ranges::fill(codes, std::byte{0});
}

}  // namespace lightcc
