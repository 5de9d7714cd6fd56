// Reductions in the order of the members, for what NCCL has not (16-bit integers, bool, a fixed
// order): reduce() of collectives/kernels/reduce.hpp, with the same bits.
#include "lightcc_cuda/kernels/elements.hpp"
#include "lightcc_cuda/kernels/reduce.hpp"

namespace lightcc::cuda {

/// Values of ReduceOp (lightcc/base/types.hpp).
enum class Op : u32 { kSum = 1, kMin = 3, kMax = 4, kProduct = 5 };

/// In which sums and products wrap around.
template <typename T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<i8> {
  using Type = u32;
};
template <>
struct Wrapping<u8> {
  using Type = u32;
};
template <>
struct Wrapping<i16> {
  using Type = u32;
};
template <>
struct Wrapping<u16> {
  using Type = u32;
};
template <>
struct Wrapping<i32> {
  using Type = u32;
};
template <>
struct Wrapping<i64> {
  using Type = u64;
};

template <typename T>
LIGHTCC_DEVICE_MEMBER T combine(T a, T b, Op op) {
  using W = typename Wrapping<T>::Type;
  switch (op) {
    case Op::kMin:
      return a != a || a < b ? a : b;
    case Op::kMax:
      return a != a || a > b ? a : b;
    case Op::kProduct:
      return static_cast<T>(static_cast<W>(a) * static_cast<W>(b));
    case Op::kSum:
      break;
  }
  return static_cast<T>(static_cast<W>(a) + static_cast<W>(b));
}

template <typename Type>
struct Reducer {
  using Wire = typename Type::Wire;
  using Lane = typename Type::Lane;
  using Factor = typename Type::Factor;
  static constexpr bool kScales = !__is_same(Type, Bool);

  const ReduceArguments& a;
  Op op;

  template <u32 N>
  LIGHTCC_DEVICE_MEMBER void prepare(u32 source, u64 element, Lane (&lanes)[N]) const {
    const bool scales = kScales && a.prescale != 1.0 && (a.prescaled >> source & 1U) != 0;
    const Chunk<Wire, N> chunk = load<N>(a.sources[source], element);
    LIGHTCC_UNROLL
    for (u32 j = 0; j < N; ++j) {
      const Lane lane = Type::decode(chunk.at[j]);
      lanes[j] = scales ? scaled_lane(lane, static_cast<Factor>(a.prescale)) : lane;
    }
  }
  LIGHTCC_DEVICE_MEMBER Wire finished(Lane lane) const {
    const bool scales = kScales && a.postscale != 1.0;
    return Type::encode(scales ? scaled_lane(lane, static_cast<Factor>(a.postscale)) : lane);
  }

  LIGHTCC_DEVICE_MEMBER bool is_all_aligned() const {
    u64 bits = reinterpret_cast<u64>(a.out);
    for (u32 k = 0; k < a.num_sources; ++k) {
      bits |= reinterpret_cast<u64>(a.sources[k]);
    }
    return is_aligned(bits, kVectorBytes);
  }

  LIGHTCC_DEVICE_MEMBER void run() const {
    const u64 first = u64{block_index()} * block_threads() + thread_index();
    const u64 stride = u64{grid_blocks()} * block_threads();
    constexpr u32 kChunk = min_of<u32>(kComputedAtOnce, kVectorBytes / sizeof(Wire));
    u64 done = 0;
    if (is_all_aligned()) {
      const u64 chunks = a.count / kChunk;
      for (u64 i = first; i < chunks; i += stride) {
        step<kChunk>(i * kChunk);
      }
      done = chunks * kChunk;
    }
    for (u64 i = done + first; i < a.count; i += stride) {
      step<1>(i);
    }
  }

  /// N elements from `element` on. Reads all of them before it writes.
  template <u32 N>
  LIGHTCC_DEVICE_MEMBER void step(u64 element) const {
    Lane result[N];
    prepare<N>(0, element, result);
    for (u32 k = 1; k < a.num_sources; ++k) {
      Lane next[N];
      prepare<N>(k, element, next);
      LIGHTCC_UNROLL
      for (u32 j = 0; j < N; ++j) {
        result[j] = combine<Lane>(result[j], next[j], op);
      }
    }
    Chunk<Wire, N> chunk;
    LIGHTCC_UNROLL
    for (u32 j = 0; j < N; ++j) {
      chunk.at[j] = finished(result[j]);
    }
    if constexpr (N == 1) {
      store_any<Wire>(a.out + element * sizeof(Wire), chunk.at[0]);
    } else {
      chunk.store(a.out + element * sizeof(Wire));
    }
  }

  template <u32 N>
  LIGHTCC_DEVICE_MEMBER static Chunk<Wire, N> load(const u8* source, u64 element) {
    if (source == nullptr) {
      return Chunk<Wire, N>{};
    }
    if constexpr (N == 1) {
      return {{load_any<Wire>(source + element * sizeof(Wire))}};
    } else {
      return Chunk<Wire, N>::load(source + element * sizeof(Wire));
    }
  }
};

/// Over bytes that are zero or not, "and" is the minimum and "or" the maximum.
LIGHTCC_DEVICE Op op_of(u32 op, bool is_bool) {
  const auto asked = static_cast<Op>(op);
  if (!is_bool) {
    return asked;
  }
  return asked == Op::kMin || asked == Op::kProduct ? Op::kMin : Op::kMax;
}

#define LIGHTCC_DEFINE_REDUCE(name, type)                           \
  LIGHTCC_KERNEL(kReduceThreads, 4) name(const ReduceArguments a) { \
    Reducer<type>{a, op_of(a.op, __is_same(type, Bool))}.run();     \
  }
LIGHTCC_REDUCE_KERNELS(LIGHTCC_DEFINE_REDUCE)

}  // namespace lightcc::cuda
