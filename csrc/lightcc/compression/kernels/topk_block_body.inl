// The pass of topk_block.hpp, written once on GNU vectors and compiled by each SIMD level's file.
//
// Bits are equal at all levels because each lane sees the same IEEE operations whatever the width
// of the vector, and selected lanes are appended in order. What is left over at the end runs
// through one padded vector of which only the lanes that exist can be hit.
//
// The including file defines, in an anonymous namespace inside lightcc, before this file:
//   kVectorBytes, Words, Longs   the width of a vector; vectors of int32 and int64;
//   halves_to_floats, load_words a vector of float from float16 in memory, Words from uint16;
//   hits, without_hits, append   on vectors of float and of double, see the plain level;
//   store_past_caches            to an address aligned to the vector, end_of_stores_past_caches.
// Rules for what may be defined and included here: topk_block_job.hpp.

#define LIGHTCC_INLINE [[gnu::always_inline]] inline

using Byte = std::byte;

template <typename T>
struct VectorOf {
  using Type [[gnu::vector_size(kVectorBytes)]] = T;
};
template <typename T>
using Vector = typename VectorOf<T>::Type;

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

// ---- Types: how elements become lanes.

struct Float32 {
  using Lane = float;
  static constexpr std::size_t kElementBytes = 4;
  LIGHTCC_INLINE static Vector<float> load(const Byte* from) {
    return load_vector<Vector<float>>(from);
  }
};

struct Float64 {
  using Lane = double;
  static constexpr std::size_t kElementBytes = 8;
  LIGHTCC_INLINE static Vector<double> load(const Byte* from) {
    return load_vector<Vector<double>>(from);
  }
};

struct Half {
  using Lane = float;
  static constexpr std::size_t kElementBytes = 2;
  LIGHTCC_INLINE static Vector<float> load(const Byte* from) { return halves_to_floats(from); }
};

struct Bfloat16 {
  using Lane = float;
  static constexpr std::size_t kElementBytes = 2;
  LIGHTCC_INLINE static Vector<float> load(const Byte* from) {
    return __builtin_bit_cast(Vector<float>, load_words(from) << 16);
  }
};

template <typename Lane>
struct KeyTraits;
template <>
struct KeyTraits<float> {
  using Key = std::int32_t;
  using Unsigned = std::uint32_t;
  static constexpr Key kMagnitude = 0x7fffffff;
  /// Added to the key of a NaN or infinity, and to no other, this sets the sign.
  static constexpr Unsigned kToSign = 0x00800000;
};
template <>
struct KeyTraits<double> {
  using Key = std::int64_t;
  using Unsigned = std::uint64_t;
  static constexpr Key kMagnitude = 0x7fffffffffffffff;
  static constexpr Unsigned kToSign = 0x0010000000000000;
};

// ---- The pass.

constexpr std::size_t kStepVectors = 4;

template <typename Type, bool HasMomentum, bool Streams, bool Accumulates>
class Pass {
 public:
  LIGHTCC_INLINE explicit Pass(const TopkBlockJob& job)
      : job_(job),
        momentum_(static_cast<Lane>(job.momentum)),
        threshold_(Keys{} + static_cast<Key>(job.threshold)) {}

  LIGHTCC_INLINE TopkBlockResult run() {
    const std::size_t count = job_.count;
    std::size_t at = 0;
    for (; count - at >= kStepVectors * kLanes; at += kStepVectors * kLanes) {
      step<kStepVectors>(at);
    }
    for (; count - at >= kLanes; at += kLanes) {
      step<1>(at);
    }
    if (at < count) {
      last(at, count - at);
    }
    if constexpr (Streams) {
      end_of_stores_past_caches();
    }
    TopkBlockResult result;
    result.selected = selected_;
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      result.non_finite = result.non_finite || bad_[lane] < 0;
    }
    return result;
  }

 private:
  using Lane = typename Type::Lane;
  using Traits = KeyTraits<Lane>;
  using Key = typename Traits::Key;
  using V = Vector<Lane>;
  using Keys = Vector<Key>;
  static constexpr std::size_t kLanes = kVectorBytes / sizeof(Lane);

  /// u and acc.
  LIGHTCC_INLINE void accumulate(
      const Byte* shard, const Byte* residual, const Byte* velocity, V& u, V& acc) {
    u = Type::load(shard);
    if constexpr (HasMomentum) {
      u = load_vector<V>(velocity) * momentum_ + u;
    }
    acc = u + load_vector<V>(residual);
  }

  LIGHTCC_INLINE Keys keys_of(const V& acc) {
    const Keys keys = __builtin_bit_cast(Keys, acc) & Traits::kMagnitude;
    // Unsigned: the sum of a NaN overflows, which is its purpose.
    using Sum = Vector<typename Traits::Unsigned>;
    bad_ |= __builtin_bit_cast(Keys, __builtin_bit_cast(Sum, keys) + Traits::kToSign);
    return keys;
  }

  LIGHTCC_INLINE void store(Byte* to, const V& x) {
    if constexpr (Streams) {
      store_past_caches(to, x);
    } else {
      store_vector(to, x);
    }
  }

  LIGHTCC_INLINE const Byte* velocity_at(std::size_t at) {
    return HasMomentum ? job_.velocity + at * sizeof(Lane) : nullptr;
  }

  template <std::size_t Unroll>
  LIGHTCC_INLINE void step(std::size_t at) {
    V u[Unroll];
    V acc[Unroll];
    for (std::size_t i = 0; i < Unroll; ++i) {
      const std::size_t from = at + i * kLanes;
      accumulate(job_.shard + from * Type::kElementBytes,
                 job_.residual + from * sizeof(Lane),
                 velocity_at(from),
                 u[i],
                 acc[i]);
    }
    for (std::size_t i = 0; i < Unroll; ++i) {
      const std::size_t from = at + i * kLanes;
      const Keys keys = keys_of(acc[i]);
      if constexpr (Accumulates) {
        store_vector(job_.values + from * sizeof(Lane), acc[i]);
        continue;
      }
      const unsigned hit = hits(keys, threshold_);
      store(job_.next_residual + from * sizeof(Lane), without_hits(acc[i], hit, keys, threshold_));
      if constexpr (HasMomentum) {
        store(job_.next_velocity + from * sizeof(Lane), without_hits(u[i], hit, keys, threshold_));
      }
      if (hit != 0) {
        emit(acc[i], hit, from);
      }
    }
  }

  LIGHTCC_INLINE void emit(const V& acc, unsigned hit, std::size_t from) {
    append(acc, hit, from, job_.offsets + selected_, job_.values + selected_ * sizeof(Lane));
    selected_ += static_cast<std::size_t>(__builtin_popcount(hit));
  }

  /// The last `count` elements, less than a vector.
  LIGHTCC_INLINE void last(std::size_t at, std::size_t count) {
    alignas(V) Byte shard[kVectorBytes] = {};
    alignas(V) Byte residual[kVectorBytes] = {};
    alignas(V) Byte velocity[kVectorBytes] = {};
    __builtin_memcpy(shard, job_.shard + at * Type::kElementBytes, count * Type::kElementBytes);
    __builtin_memcpy(residual, job_.residual + at * sizeof(Lane), count * sizeof(Lane));
    if constexpr (HasMomentum) {
      __builtin_memcpy(velocity, job_.velocity + at * sizeof(Lane), count * sizeof(Lane));
    }
    V u;
    V acc;
    accumulate(shard, residual, velocity, u, acc);
    const Keys keys = keys_of(acc);
    if constexpr (Accumulates) {
      __builtin_memcpy(job_.values + at * sizeof(Lane), &acc, count * sizeof(Lane));
      return;
    }
    const unsigned hit = hits(keys, threshold_) & ((1U << count) - 1U);
    const V next = without_hits(acc, hit, keys, threshold_);
    __builtin_memcpy(job_.next_residual + at * sizeof(Lane), &next, count * sizeof(Lane));
    if constexpr (HasMomentum) {
      const V next_u = without_hits(u, hit, keys, threshold_);
      __builtin_memcpy(job_.next_velocity + at * sizeof(Lane), &next_u, count * sizeof(Lane));
    }
    emit(acc, hit, at);
  }

  // A copy: stores to the residual could change the caller's job for all a compiler knows.
  const TopkBlockJob job_;
  const Lane momentum_;
  const Keys threshold_;
  Keys bad_{};  ///< Negative in lanes that met a NaN or infinity.
  std::size_t selected_ = 0;
};

// ---- Choosing a pass.

template <typename Type, bool HasMomentum, bool Streams, bool Accumulates>
[[gnu::noinline]] TopkBlockResult run_pass(const TopkBlockJob& job) {
  return Pass<Type, HasMomentum, Streams, Accumulates>(job).run();
}

template <typename Type, bool HasMomentum>
TopkBlockResult run_kind(const TopkBlockJob& job) {
  if (job.next_residual == nullptr) {
    return run_pass<Type, HasMomentum, false, true>(job);
  }
  return job.stream ? run_pass<Type, HasMomentum, true, false>(job)
                    : run_pass<Type, HasMomentum, false, false>(job);
}

template <typename Type>
TopkBlockResult run_type(const TopkBlockJob& job) {
  return job.velocity != nullptr ? run_kind<Type, true>(job) : run_kind<Type, false>(job);
}

inline TopkBlockResult run_job(const TopkBlockJob& job) {
  switch (job.dtype) {
    case DataType::kFloat16:
      return run_type<Half>(job);
    case DataType::kBfloat16:
      return run_type<Bfloat16>(job);
    case DataType::kFloat64:
      return run_type<Float64>(job);
    default:
      return run_type<Float32>(job);
  }
}

#undef LIGHTCC_INLINE
