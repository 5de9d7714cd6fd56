// Quantisation and the way back, as loops that the compiler makes vectors of: included by the file
// of each SIMD level, in an anonymous namespace.

template <typename T>
struct LaneTraits;

template <>
struct LaneTraits<float> {
  using Key = std::uint32_t;
  // may_alias: lanes lie in bytes.
  using Loose [[gnu::aligned(1), gnu::may_alias]] = float;
  using Lane [[gnu::may_alias]] = float;
  static constexpr Key kInfinity = 0x7f800000U;
  static constexpr Key kLargest = 0x7f7fffffU;
  static constexpr Key kMinimumScale = 0x0080U;
  static constexpr unsigned kScaleShift = 16;
  static constexpr float kRounder = 0x1.8p23F;  // Added, it leaves an integer in the lower bits.
};

template <>
struct LaneTraits<double> {
  using Key = std::uint64_t;
  using Loose [[gnu::aligned(1), gnu::may_alias]] = double;
  using Lane [[gnu::may_alias]] = double;
  static constexpr Key kInfinity = 0x7ff0000000000000U;
  static constexpr Key kLargest = 0x7fefffffffffffffU;
  static constexpr Key kMinimumScale = 0x0010U;
  static constexpr unsigned kScaleShift = 48;
  static constexpr double kRounder = 0x1.8p52;
};

constexpr std::size_t kElems = kQuantizedBlockElems;
constexpr std::size_t kHalf = kElems / 2;

template <typename T>
[[gnu::always_inline]] inline T scale_of(std::uint16_t bits) {
  using Key = LaneTraits<T>::Key;
  return __builtin_bit_cast(T, static_cast<Key>(Key{bits} << LaneTraits<T>::kScaleShift));
}

/// Of a block whose largest magnitude is finite.
template <typename T>
[[gnu::always_inline]] inline std::uint16_t choose_scale(T peak, T levels) {
  using Traits = LaneTraits<T>;
  using Key = Traits::Key;
  constexpr Key kBelow = (Key{1} << Traits::kScaleShift) - 1;
  const T largest = __builtin_bit_cast(T, Traits::kLargest) / levels;
  const Key maximum = __builtin_bit_cast(Key, largest) >> Traits::kScaleShift;
  const T exact = peak / levels;
  Key bits = (__builtin_bit_cast(Key, exact) + kBelow) >> Traits::kScaleShift;
  bits = bits > maximum ? maximum : bits;
  return static_cast<std::uint16_t>(bits < Traits::kMinimumScale ? 0 : bits);
}

template <typename T>
[[gnu::always_inline]] inline bool quantize_block(const std::byte* input,
                                                  const std::byte* residual,
                                                  std::byte* next,
                                                  T levels,
                                                  std::uint16_t* scale,
                                                  signed char* codes) {
  using Traits = LaneTraits<T>;
  using Key = Traits::Key;
  const auto* x = reinterpret_cast<const Traits::Loose*>(input);
  const auto* kept = reinterpret_cast<const Traits::Lane*>(residual);
  auto* left = reinterpret_cast<Traits::Lane*>(next);
  // NOLINTNEXTLINE(modernize-avoid-c-arrays): no std::array here (quantize_blocks_job.hpp).
  alignas(64) T acc[kElems];
  Key peak = 0;
  for (std::size_t i = 0; i < kElems; ++i) {
    const T sum = residual == nullptr ? x[i] : x[i] + kept[i];
    acc[i] = sum;
    const Key magnitude = __builtin_bit_cast(Key, sum) & ~(Key{1} << (sizeof(T) * 8 - 1));
    peak = magnitude > peak ? magnitude : peak;
  }
  if (peak >= Traits::kInfinity) {
    return false;
  }
  *scale = choose_scale(__builtin_bit_cast(T, peak), levels);
  if (*scale == 0) {
    for (std::size_t i = 0; i < kElems; ++i) {
      codes[i] = 0;
      left[i] = acc[i];
    }
    return true;
  }
  const T unit = scale_of<T>(*scale);
  const T inverse = T{1} / unit;
  for (std::size_t i = 0; i < kElems; ++i) {
    T scaled = acc[i] * inverse;
    scaled = scaled > levels ? levels : scaled;
    scaled = scaled < -levels ? -levels : scaled;
    const T shifted = scaled + Traits::kRounder;
    // The rounder's lower bits are zeros, so the sum's are the integer's.
    codes[i] = static_cast<signed char>(__builtin_bit_cast(Key, shifted));
    left[i] = acc[i] - unit * (shifted - Traits::kRounder);
  }
  return true;
}

template <typename T>
[[gnu::always_inline]] inline bool quantize_all(const QuantizeJob& job) {
  constexpr std::size_t kBlockBytes = kElems * sizeof(T);
  const T levels = job.four_bits ? T{7} : T{127};
  const std::size_t code_bytes = job.four_bits ? kHalf : kElems;
  for (std::size_t block = 0; block < job.blocks; ++block) {
    std::uint16_t scale = 0;
    // NOLINTNEXTLINE(modernize-avoid-c-arrays)
    alignas(64) signed char codes[kElems];
    const std::byte* residual =
        job.residual == nullptr ? nullptr : job.residual + block * kBlockBytes;
    if (!quantize_block<T>(job.input + block * kBlockBytes,
                           residual,
                           job.next + block * kBlockBytes,
                           levels,
                           &scale,
                           codes)) {
      return false;
    }
    __builtin_memcpy(job.scales + block * sizeof(scale), &scale, sizeof(scale));
    auto* out = reinterpret_cast<unsigned char*>(job.codes + block * code_bytes);
    if (!job.four_bits) {
      __builtin_memcpy(out, codes, kElems);
      continue;
    }
    for (std::size_t i = 0; i < kHalf; ++i) {
      const unsigned lower = static_cast<unsigned char>(codes[i]) & 15U;
      const unsigned upper = static_cast<unsigned char>(codes[i + kHalf]) & 15U;
      out[i] = static_cast<unsigned char>(lower | upper << 4);
    }
  }
  return true;
}

template <typename T>
[[gnu::always_inline]] inline void dequantize_all(const DequantizeJob& job) {
  using Lane = LaneTraits<T>::Lane;
  const std::size_t code_bytes = job.four_bits ? kHalf : kElems;
  for (std::size_t block = 0; block < job.blocks; ++block) {
    std::uint16_t bits = 0;
    __builtin_memcpy(&bits, job.scales + block * sizeof(bits), sizeof(bits));
    const T unit = scale_of<T>(bits);
    // NOLINTNEXTLINE(modernize-avoid-c-arrays)
    alignas(64) signed char codes[kElems];
    const auto* in = reinterpret_cast<const unsigned char*>(job.codes + block * code_bytes);
    if (job.four_bits) {
      for (std::size_t i = 0; i < kHalf; ++i) {
        const auto lower = static_cast<unsigned char>(in[i] << 4);
        codes[i] = static_cast<signed char>(static_cast<signed char>(lower) >> 4);
        codes[i + kHalf] = static_cast<signed char>(static_cast<signed char>(in[i]) >> 4);
      }
    } else {
      __builtin_memcpy(codes, in, kElems);
    }
    auto* lanes = reinterpret_cast<Lane*>(job.lanes + block * kElems * sizeof(T));
    if (job.add) {
      for (std::size_t i = 0; i < kElems; ++i) {
        lanes[i] = lanes[i] + unit * static_cast<T>(codes[i]);
      }
    } else {
      for (std::size_t i = 0; i < kElems; ++i) {
        lanes[i] = unit * static_cast<T>(codes[i]);
      }
    }
  }
}
