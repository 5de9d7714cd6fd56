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
  static constexpr Key kSign = 0x80000000U;
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
  static constexpr Key kSign = 0x8000000000000000U;
  static constexpr Key kMinimumScale = 0x0010U;
  static constexpr unsigned kScaleShift = 48;
  static constexpr double kRounder = 0x1.8p52;
};

constexpr std::size_t kElems = kQuantizedBlockElems;
constexpr std::size_t kHalf = kElems / 2;
constexpr std::size_t kEighth = kElems / 8;

template <typename T>
[[gnu::always_inline]] inline T scale_of(std::uint16_t bits) {
  using Key = LaneTraits<T>::Key;
  return __builtin_bit_cast(T, static_cast<Key>(Key{bits} << LaneTraits<T>::kScaleShift));
}

/// `exact`, rounded up; at most what keeps its product with `levels` finite.
template <typename T>
[[gnu::always_inline]] inline std::uint16_t choose_scale(T exact, T levels) {
  using Traits = LaneTraits<T>;
  using Key = Traits::Key;
  constexpr Key kBelow = (Key{1} << Traits::kScaleShift) - 1;
  const T largest = __builtin_bit_cast(T, Traits::kLargest) / levels;
  const Key maximum = __builtin_bit_cast(Key, largest) >> Traits::kScaleShift;
  Key bits = (__builtin_bit_cast(Key, exact) + kBelow) >> Traits::kScaleShift;
  bits = bits > maximum ? maximum : bits;
  return static_cast<std::uint16_t>(bits < Traits::kMinimumScale ? 0 : bits);
}

/// input + residual of a block, to `acc`. Returns the largest magnitude, infinity for a NaN.
template <typename T>
[[gnu::always_inline]] inline T add_block(const std::byte* input,
                                          const std::byte* residual,
                                          T* acc) {
  using Traits = LaneTraits<T>;
  using Key = Traits::Key;
  const auto* x = reinterpret_cast<const Traits::Loose*>(input);
  const auto* kept = reinterpret_cast<const Traits::Lane*>(residual);
  Key peak = 0;
  for (std::size_t i = 0; i < kElems; ++i) {
    const T sum = residual == nullptr ? x[i] : x[i] + kept[i];
    acc[i] = sum;
    const Key magnitude = __builtin_bit_cast(Key, sum) & ~Traits::kSign;
    peak = magnitude > peak ? magnitude : peak;
  }
  return __builtin_bit_cast(T, peak < Traits::kInfinity ? peak : Traits::kInfinity);
}

/// Nothing is sent of a block whose scale is 0.
template <typename T>
[[gnu::always_inline]] inline void keep_block(const T* acc, std::byte* next, signed char* codes) {
  auto* left = reinterpret_cast<LaneTraits<T>::Lane*>(next);
  for (std::size_t i = 0; i < kElems; ++i) {
    codes[i] = 0;
    left[i] = acc[i];
  }
}

template <typename T>
[[gnu::always_inline]] inline void round_block(
    const T* acc, T unit, T levels, std::byte* next, signed char* codes) {
  using Traits = LaneTraits<T>;
  using Key = Traits::Key;
  auto* left = reinterpret_cast<Traits::Lane*>(next);
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
}

[[gnu::always_inline]] inline void pack_codes(const signed char* codes,
                                              unsigned bits,
                                              std::byte* to) {
  auto* out = reinterpret_cast<unsigned char*>(to);
  if (bits == 8) {
    __builtin_memcpy(out, codes, kElems);
  } else {
    for (std::size_t i = 0; i < kHalf; ++i) {
      const unsigned lower = static_cast<unsigned char>(codes[i]) & 15U;
      const unsigned upper = static_cast<unsigned char>(codes[i + kHalf]) & 15U;
      out[i] = static_cast<unsigned char>(lower | upper << 4);
    }
  }
}

[[gnu::always_inline]] inline void unpack_codes(const std::byte* from,
                                                unsigned bits,
                                                signed char* codes) {
  const auto* in = reinterpret_cast<const unsigned char*>(from);
  if (bits == 8) {
    __builtin_memcpy(codes, in, kElems);
  } else {
    for (std::size_t i = 0; i < kHalf; ++i) {
      const auto lower = static_cast<unsigned char>(in[i] << 4);
      codes[i] = static_cast<signed char>(static_cast<signed char>(lower) >> 4);
      codes[i + kHalf] = static_cast<signed char>(static_cast<signed char>(in[i]) >> 4);
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline bool quantize_all(const QuantizeJob& job) {
  constexpr std::size_t kBlockBytes = kElems * sizeof(T);
  const T levels = job.bits == 8 ? T{127} : T{7};
  for (std::size_t block = 0; block < job.blocks; ++block) {
    // NOLINTBEGIN(modernize-avoid-c-arrays): no std::array here (quantize_blocks_job.hpp).
    alignas(64) T acc[kElems];
    alignas(64) signed char codes[kElems];
    // NOLINTEND(modernize-avoid-c-arrays)
    const std::size_t at = block * kBlockBytes;
    const T peak =
        add_block<T>(job.input + at, job.residual == nullptr ? nullptr : job.residual + at, acc);
    if (__builtin_isinf(peak)) {
      return false;
    }
    const std::uint16_t scale = choose_scale<T>(peak / levels, levels);
    const T unit = scale_of<T>(scale);
    if (scale == 0) {
      keep_block(acc, job.next + at, codes);
    } else {
      round_block(acc, unit, levels, job.next + at, codes);
    }
    __builtin_memcpy(job.scales + block * sizeof(scale), &scale, sizeof(scale));
    pack_codes(codes, job.bits, job.codes + block * kEighth * job.bits);
  }
  return true;
}

template <typename T>
[[gnu::always_inline]] inline void multiply_codes(const signed char* codes,
                                                  T unit,
                                                  bool add,
                                                  std::byte* to) {
  auto* lanes = reinterpret_cast<LaneTraits<T>::Lane*>(to);
  if (add) {
    for (std::size_t i = 0; i < kElems; ++i) {
      lanes[i] = lanes[i] + unit * static_cast<T>(codes[i]);
    }
  } else {
    for (std::size_t i = 0; i < kElems; ++i) {
      lanes[i] = unit * static_cast<T>(codes[i]);
    }
  }
}

template <typename T>
[[gnu::always_inline]] inline void dequantize_all(const DequantizeJob& job) {
  for (std::size_t block = 0; block < job.blocks; ++block) {
    std::uint16_t scale = 0;
    __builtin_memcpy(&scale, job.scales + block * sizeof(scale), sizeof(scale));
    const T unit = scale_of<T>(scale);
    // NOLINTNEXTLINE(modernize-avoid-c-arrays)
    alignas(64) signed char codes[kElems];
    unpack_codes(job.codes + block * kEighth * job.bits, job.bits, codes);
    std::byte* const lanes = job.lanes + block * kElems * sizeof(T);
    multiply_codes<T>(codes, unit, job.add, lanes);
  }
}
