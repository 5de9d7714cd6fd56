// The reduction kernels, written once on GNU vectors and compiled by each SIMD level's file.
//
// A kernel makes one pass: for every step of a few vectors it combines all sources in registers, in
// order, then scales, rounds and stores, so memory is read once and written once however many
// sources there are. Every load of a step precedes its stores, which is what makes `out` equal to a
// source safe. What is left over runs through one vector padded with zeros, so tails have the same
// arithmetic as the rest.
//
// Bits are equal at all levels because each lane sees the same IEEE operations whatever the width
// of the vector: nothing is summed across lanes.
//
// The including file defines, in an anonymous namespace inside lightcc, before this file:
//   kVectorBytes         the width of a vector: 16, 32 or 64;
//   Words                a vector of std::int32_t;
//   halves_to_floats, floats_to_halves   a vector of float from and to float16 in memory;
//   load_words, store_words   Words from and to unsigned 16-bit numbers in memory; those stored
//   fit.
// Rules for what may be defined and included here: reduce_job.hpp.

using Byte = std::byte;

#define LIGHTCC_INLINE [[gnu::always_inline]] inline

template <typename T, std::size_t Bytes>
struct VectorOf {
  using Type [[gnu::vector_size(Bytes)]] = T;
};
template <typename T>
using Vector = typename VectorOf<T, kVectorBytes>::Type;

template <typename V>
LIGHTCC_INLINE V load_vector(const Byte* from) {
  V vector;
  __builtin_memcpy(&vector, from, sizeof(V));
  return vector;
}

template <typename V>
LIGHTCC_INLINE void store_vector(Byte* to, const V& vector) {
  __builtin_memcpy(to, &vector, sizeof(V));
}

LIGHTCC_INLINE Vector<float> one_nan(Vector<float> x) {
  const Vector<std::int32_t> nan = Vector<std::int32_t>{} + 0x7fc00000;
  return x == x ? x : __builtin_bit_cast(Vector<float>, nan);
}

LIGHTCC_INLINE Vector<double> one_nan(Vector<double> x) {
  const Vector<std::int64_t> nan = Vector<std::int64_t>{} + 0x7ff8000000000000;
  return x == x ? x : __builtin_bit_cast(Vector<double>, nan);
}

// ---- Types: how elements become lanes, and back.
//
// Lane: what is computed with. Factor: the type in which factors multiply.

template <typename T>
struct Floating {
  using Lane = T;
  using Factor = T;
  static constexpr bool kScalable = true;
  static constexpr std::size_t kElementBytes = sizeof(T);

  LIGHTCC_INLINE static Vector<T> load(const Byte* from) { return load_vector<Vector<T>>(from); }
  LIGHTCC_INLINE static void store(Byte* to, Vector<T> x) { store_vector(to, one_nan(x)); }
};

template <typename T>
struct Integer {
  using Lane = T;
  using Factor = double;
  static constexpr bool kScalable = true;
  static constexpr std::size_t kElementBytes = sizeof(T);

  LIGHTCC_INLINE static Vector<T> load(const Byte* from) { return load_vector<Vector<T>>(from); }
  LIGHTCC_INLINE static void store(Byte* to, Vector<T> x) { store_vector(to, x); }
};

struct Bool {
  using Lane = std::uint8_t;
  using Factor = double;
  static constexpr bool kScalable = false;
  static constexpr std::size_t kElementBytes = 1;

  LIGHTCC_INLINE static Vector<Lane> load(const Byte* from) {
    return load_vector<Vector<Lane>>(from);
  }
  LIGHTCC_INLINE static void store(Byte* to, Vector<Lane> x) {
    const Vector<Lane> zero{};
    store_vector(to, x != zero ? zero + std::uint8_t{1} : zero);
  }
};

struct Half {
  using Lane = float;
  using Factor = float;
  static constexpr bool kScalable = true;
  static constexpr std::size_t kElementBytes = 2;

  LIGHTCC_INLINE static Vector<float> load(const Byte* from) { return halves_to_floats(from); }
  LIGHTCC_INLINE static void store(Byte* to, Vector<float> x) { floats_to_halves(to, one_nan(x)); }
};

struct Bfloat16 {
  using Lane = float;
  using Factor = float;
  static constexpr bool kScalable = true;
  static constexpr std::size_t kElementBytes = 2;
  using Bits = Vector<std::uint32_t>;

  LIGHTCC_INLINE static Vector<float> load(const Byte* from) {
    return __builtin_bit_cast(Vector<float>, load_words(from) << 16);
  }
  /// Rounding carries the one NaN, 0x7fc00000, to 0x7fc0: no case of its own.
  LIGHTCC_INLINE static void store(Byte* to, Vector<float> x) {
    const Bits bits = __builtin_bit_cast(Bits, one_nan(x));
    const Bits rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    store_words(to, __builtin_bit_cast(Words, rounded));
  }
};

// ---- Operators.

template <typename T>
struct WrappingOf {
  using Type = T;  // Floating point: as it is.
};
template <>
struct WrappingOf<std::int8_t> {
  using Type = std::uint8_t;
};
template <>
struct WrappingOf<std::int16_t> {
  using Type = std::uint16_t;
};
template <>
struct WrappingOf<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct WrappingOf<std::int64_t> {
  using Type = std::uint64_t;
};
template <typename T>
using Wrapping = Vector<typename WrappingOf<T>::Type>;

struct Sum {
  template <typename T>
  LIGHTCC_INLINE static Vector<T> apply(Vector<T> a, Vector<T> b) {
    using W = Wrapping<T>;
    return __builtin_bit_cast(Vector<T>, __builtin_bit_cast(W, a) + __builtin_bit_cast(W, b));
  }
};

struct Product {
  template <typename T>
  LIGHTCC_INLINE static Vector<T> apply(Vector<T> a, Vector<T> b) {
    using W = Wrapping<T>;
    return __builtin_bit_cast(Vector<T>, __builtin_bit_cast(W, a) * __builtin_bit_cast(W, b));
  }
};

// For integers `a != a` is false and costs nothing.
struct Min {
  template <typename T>
  LIGHTCC_INLINE static Vector<T> apply(Vector<T> a, Vector<T> b) {
    const Vector<T> less = a < b ? a : b;
    return a != a ? a : less;
  }
};

struct Max {
  template <typename T>
  LIGHTCC_INLINE static Vector<T> apply(Vector<T> a, Vector<T> b) {
    const Vector<T> greater = a > b ? a : b;
    return a != a ? a : greater;
  }
};

// ---- Factors.

template <typename T>
struct Limits {
  static constexpr bool kSigned = T(-1) < T(0);
  static constexpr int kValueBits = static_cast<int>(sizeof(T)) * 8 - (kSigned ? 1 : 0);
  static constexpr T kMax = static_cast<T>((std::uint64_t{1} << kValueBits) - 1);
  static constexpr T kMin = kSigned ? static_cast<T>(-kMax - 1) : T(0);
  static constexpr double kEnd = 2.0 * static_cast<double>(std::uint64_t{1} << (kValueBits - 1));
};

/// Truncates; what is outside of T becomes the nearest of its ends, NaN becomes 0.
template <typename T>
LIGHTCC_INLINE T scale_integer(T x, double factor) {
  const double product = static_cast<double>(x) * factor;
  const bool above = product >= Limits<T>::kEnd;
  const bool below = product <= static_cast<double>(Limits<T>::kMin);
  const bool inside = product < Limits<T>::kEnd && product > static_cast<double>(Limits<T>::kMin);
  const T truncated = static_cast<T>(inside ? product : 0.0);
  const T low = below ? Limits<T>::kMin : truncated;
  return above ? Limits<T>::kMax : low;
}

/// Out of line: rare, and large once vectorised.
template <typename T>
[[gnu::noinline]] void scale_integers(T* lanes, std::size_t count, double factor) {
  for (std::size_t i = 0; i < count; ++i) {
    lanes[i] = scale_integer(lanes[i], factor);
  }
}

/// Multiplies `Unroll` vectors by `factor`.
template <typename Type, std::size_t Unroll>
LIGHTCC_INLINE void scale(Vector<typename Type::Lane> (&x)[Unroll], typename Type::Factor factor) {
  using Lane = typename Type::Lane;
  if constexpr (__is_same(Lane, typename Type::Factor)) {
    for (std::size_t u = 0; u < Unroll; ++u) {
      x[u] = x[u] * factor;
    }
  } else if constexpr (Type::kScalable) {
    Lane lanes[Unroll * kVectorBytes / sizeof(Lane)];
    __builtin_memcpy(lanes, x, sizeof(lanes));
    scale_integers(lanes, Unroll * kVectorBytes / sizeof(Lane), factor);
    __builtin_memcpy(x, lanes, sizeof(lanes));
  }
}

// ---- Kernels.

constexpr std::size_t kStepVectors = 4;

/// What null sources read: a step of zeros, whatever the offset.
alignas(64) constexpr Byte kZeros[kStepVectors * kVectorBytes] = {};

/// One reduction of `Type` by `Op`. NumSources is the number of sources, all present and none to be
/// scaled; 0 stands for any number of any kind.
template <typename Type, typename Op, std::size_t NumSources>
class Kernel {
 public:
  LIGHTCC_INLINE explicit Kernel(const detail::ReduceJob& job)
      : job_(job),
        out_(job.out),
        out2_(job.out2),
        prescale_(static_cast<Factor>(job.prescale)),
        postscale_(static_cast<Factor>(job.postscale)),
        scale_before_(Type::kScalable && job.prescale != 1.0),
        scale_after_(Type::kScalable && job.postscale != 1.0) {
    for (std::size_t k = 0; k < NumSources; ++k) {
      sources_[k] = job.sources[k].data;
    }
  }

  LIGHTCC_INLINE void run() const {
    const std::size_t end = job_.count * Type::kElementBytes;
    std::size_t at = 0;
    for (; end - at >= kStepVectors * kBytes; at += kStepVectors * kBytes) {
      step<kStepVectors, kBytes>(at, kBytes);
    }
    for (; end - at >= kBytes; at += kBytes) {
      step<1, kBytes>(at, kBytes);
    }
    if (at < end) {
      step<1, 0>(at, end - at);
    }
  }

 private:
  using Lane = typename Type::Lane;
  using Factor = typename Type::Factor;
  using V = Vector<Lane>;
  /// What a vector's elements take in memory.
  static constexpr std::size_t kBytes = kVectorBytes / sizeof(Lane) * Type::kElementBytes;

  /// Combines and stores `Unroll` vectors at byte `at`. `Bytes` is kBytes, or 0 for a last vector
  /// of which only `bytes` bytes are there.
  template <std::size_t Unroll, std::size_t Bytes>
  LIGHTCC_INLINE void step(std::size_t at, std::size_t bytes) const {
    V result[Unroll];
    load_source<Unroll, Bytes>(result, 0, at, bytes);
    const std::size_t num_sources = NumSources != 0 ? NumSources : job_.num_sources;
    for (std::size_t k = 1; k < num_sources; ++k) {
      V next[Unroll];
      load_source<Unroll, Bytes>(next, k, at, bytes);
      for (std::size_t u = 0; u < Unroll; ++u) {
        result[u] = Op::template apply<Lane>(result[u], next[u]);
      }
    }
    if (scale_after_) {
      scale<Type, Unroll>(result, postscale_);
    }
    store<Unroll, Bytes>(out_ + at, result, bytes);
    if (out2_ != nullptr) {
      store<Unroll, Bytes>(out2_ + at, result, bytes);
    }
  }

  template <std::size_t Unroll, std::size_t Bytes>
  LIGHTCC_INLINE void load_source(V (&x)[Unroll],
                                  std::size_t k,
                                  std::size_t at,
                                  std::size_t bytes) const {
    if constexpr (NumSources != 0) {
      load<Unroll, Bytes>(x, sources_[k] + at, bytes);
    } else {
      const ReduceSource& source = job_.sources[k];
      load<Unroll, Bytes>(x, source.data != nullptr ? source.data + at : kZeros, bytes);
      if (scale_before_ && source.prescale) {
        scale<Type, Unroll>(x, prescale_);
      }
    }
  }

  template <std::size_t Unroll, std::size_t Bytes>
  LIGHTCC_INLINE static void load(V (&x)[Unroll], const Byte* from, std::size_t bytes) {
    if constexpr (Bytes != 0) {
      for (std::size_t u = 0; u < Unroll; ++u) {
        x[u] = Type::load(from + u * Bytes);
      }
    } else {
      alignas(V) Byte padded[kBytes] = {};
      __builtin_memcpy(padded, from, bytes);
      x[0] = Type::load(padded);
    }
  }

  template <std::size_t Unroll, std::size_t Bytes>
  LIGHTCC_INLINE static void store(Byte* to, const V (&x)[Unroll], std::size_t bytes) {
    if constexpr (Bytes != 0) {
      for (std::size_t u = 0; u < Unroll; ++u) {
        Type::store(to + u * Bytes, x[u]);
      }
    } else {
      alignas(V) Byte padded[kBytes];
      Type::store(padded, x[0]);
      __builtin_memcpy(to, padded, bytes);
    }
  }

  const detail::ReduceJob& job_;
  // Copies of what the inner loop needs: stores to `out` could change `job_` for all a compiler
  // knows.
  const Byte* sources_[NumSources != 0 ? NumSources : 1] = {};
  Byte* out_;
  Byte* out2_;
  Factor prescale_;
  Factor postscale_;
  bool scale_before_;
  bool scale_after_;
};

// ---- Choosing a kernel.

template <typename Type, typename Op, std::size_t NumSources>
[[gnu::noinline]] void run_kernel(const detail::ReduceJob& job) {
  Kernel<Type, Op, NumSources>(job).run();
}

/// Whether all sources are there and none is to be scaled.
inline bool is_simple(const detail::ReduceJob& job) {
  for (std::size_t k = 0; k < job.num_sources; ++k) {
    const ReduceSource& source = job.sources[k];
    if (source.data == nullptr || (source.prescale && job.prescale != 1.0)) {
      return false;
    }
  }
  return true;
}

/// Sums of gradients and counters, over few ranks, get a loop of their own.
template <typename Type>
void run_sum(const detail::ReduceJob& job) {
  if constexpr (sizeof(typename Type::Lane) >= 4) {
    switch (is_simple(job) ? job.num_sources : 0) {
      case 2:
        return run_kernel<Type, Sum, 2>(job);
      case 3:
        return run_kernel<Type, Sum, 3>(job);
      case 4:
        return run_kernel<Type, Sum, 4>(job);
      default:
        break;
    }
  }
  run_kernel<Type, Sum, 0>(job);
}

template <typename Type>
void run_type(const detail::ReduceJob& job) {
  switch (job.op) {
    case ReduceOp::kMin:
      return run_kernel<Type, Min, 0>(job);
    case ReduceOp::kMax:
      return run_kernel<Type, Max, 0>(job);
    case ReduceOp::kProduct:
      return run_kernel<Type, Product, 0>(job);
    case ReduceOp::kSum:
    case ReduceOp::kAverage:  // These two are not for here; their sum is what a caller can have
                              // meant.
    case ReduceOp::kAdasum:
      return run_sum<Type>(job);
  }
}

/// Over bytes that are zero or not, "and" is the unsigned minimum and "or" the maximum.
inline void run_bool(const detail::ReduceJob& job) {
  if (job.op == ReduceOp::kMin || job.op == ReduceOp::kProduct) {
    return run_kernel<Bool, Min, 0>(job);
  }
  run_kernel<Bool, Max, 0>(job);
}

inline void run_job(const detail::ReduceJob& job) {
  switch (job.dtype) {
    case DataType::kUint8:
      return run_type<Integer<std::uint8_t>>(job);
    case DataType::kInt8:
      return run_type<Integer<std::int8_t>>(job);
    case DataType::kUint16:
      return run_type<Integer<std::uint16_t>>(job);
    case DataType::kInt16:
      return run_type<Integer<std::int16_t>>(job);
    case DataType::kInt32:
      return run_type<Integer<std::int32_t>>(job);
    case DataType::kInt64:
      return run_type<Integer<std::int64_t>>(job);
    case DataType::kFloat16:
      return run_type<Half>(job);
    case DataType::kFloat32:
      return run_type<Floating<float>>(job);
    case DataType::kFloat64:
      return run_type<Floating<double>>(job);
    case DataType::kBool:
      return run_bool(job);
    case DataType::kBfloat16:
      return run_type<Bfloat16>(job);
  }
}

#undef LIGHTCC_INLINE
